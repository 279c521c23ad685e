// The one function of libharmony_cuda.so.

#include <ATen/Context.h>
#include <c10/cuda/CUDAException.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/build_identity.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/cuda/driver.h"
#include "common/cuda/region.h"
#include "worker/cuda/cuda_device.h"
#include "worker/cuda/operators.h"
#include "worker/cuda/workspace_allocator.h"
#include "worker/device/cpu_identity.h"
#include "worker/device/cuda_plugin.h"
#include "worker/models/fused_attention.h"

namespace harmony::worker::cuda {
namespace {

class CudaBackend : public DeviceBackend {
 public:
  CudaBackend(int ordinal, harmony::cuda::RegionMapping region, std::string computes_on)
      : ordinal_(ordinal), region_(std::move(region)), computes_on_(std::move(computes_on)) {}

  Bytes memory() const override { return region_.size(); }
  std::string ComputesOn() const override { return computes_on_; }
  absl::StatusOr<std::unique_ptr<ComputeDevice>> Open(Bytes resident, Bytes workspace,
                                                      int) override {
    return CudaDevice::Create({.ordinal = ordinal_,
                               .region = DeviceAddress(region_.address()),
                               .resident = resident,
                               .workspace = workspace});
  }

 private:
  const int ordinal_;
  const harmony::cuda::RegionMapping region_;
  const std::string computes_on_;
};

std::string CublasVersion() {
  int version[3] = {};
  cublasGetProperty(MAJOR_VERSION, &version[0]);
  cublasGetProperty(MINOR_VERSION, &version[1]);
  cublasGetProperty(PATCH_LEVEL, &version[2]);
  return absl::StrJoin(version, ".");
}

// REQUIRES: the device is current.
std::string ComputesOn(const cudaDeviceProp& gpu) {
  int driver = 0, runtime = 0;
  C10_CUDA_CHECK(cudaDriverGetVersion(&driver));
  C10_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  return absl::StrCat(gpu.name, " (", gpu.multiProcessorCount,
                      " multiprocessors), driver for CUDA ",
                      harmony::cuda::FormatDriverVersion(driver), ", CUDA ",
                      harmony::cuda::FormatDriverVersion(runtime), ", cuBLAS ", CublasVersion(),
                      ", LibTorch ", TorchVersion(), ", harmony ", Version());
}

// The same bits each time, and sums in fp32: what would be faster otherwise is switched off.
void ChooseExactAlgorithms() {
  // Read when cuBLAS is first used: a workspace of a fixed size, so that its choice of algorithms
  // does not depend on what is free.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/1);
  at::Context& context = at::globalContext();
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  context.setFloat32MatmulPrecision("highest");
  context.setAllowTF32CuDNN(false);
  context.setAllowBF16ReductionCuBLAS(false);
  context.setAllowFP16ReductionCuBLAS(false);
  // Where LibTorch has an algorithm that is the same each time, beside a faster one. Operations of
  // which it has none it names in the log, once each, and results may then differ in their last
  // bits from run to run.
  context.setDeterministicAlgorithms(true, /*warn_only=*/true);
  context.setDeterministicFillUninitializedMemory(false);
}

absl::StatusOr<std::unique_ptr<DeviceBackend>> Open(const plan::DeviceSpec& device, int fd) {
  HARMONY_ASSIGN_OR_RETURN(const harmony::cuda::Driver* driver, harmony::cuda::LoadDriver());
  ChooseExactAlgorithms();
  InstallWorkspaceAllocator();
  RegisterOperators();
  // Makes LibTorch's context on the device, which is the primary one, and current here.
  const cudaError_t ready = cudaSetDevice(device.cuda_ordinal);
  const cudaError_t made = ready == cudaSuccess ? cudaFree(nullptr) : ready;
  if (made != cudaSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat("cuda:", device.cuda_ordinal, ": ", cudaGetErrorString(made)));
  }
  HARMONY_ASSIGN_OR_RETURN(
      harmony::cuda::RegionMapping region,
      harmony::cuda::RegionMapping::Map(*driver, fd, device.memory, {device.cuda_ordinal}));
  cudaDeviceProp gpu{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&gpu, device.cuda_ordinal));
  UseFusedAttention(gpu.multiProcessorCount);
  return std::make_unique<CudaBackend>(device.cuda_ordinal, std::move(region), ComputesOn(gpu));
}

}  // namespace
}  // namespace harmony::worker::cuda

extern "C" __attribute__((visibility("default"))) const harmony::worker::CudaPlugin*
harmony_cuda_plugin() {
  static const harmony::worker::CudaPlugin plugin = {harmony::BuildIdentity(),
                                                     &harmony::worker::cuda::Open};
  return &plugin;
}
