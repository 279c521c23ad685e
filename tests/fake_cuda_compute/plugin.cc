// Stands in for libharmony_cuda.so where there is no GPU: a worker of a cuda device that computes
// by the CPU's layers, in memory that it reaches by the (fake) driver as a real one does. Given to
// programs by HARMONY_CUDA_PLUGIN.

#include <optional>
#include <utility>

#include "common/base/build_identity.h"
#include "common/base/status.h"
#include "common/cuda/context.h"
#include "common/cuda/region.h"
#include "worker/device/cpu_device.h"
#include "worker/device/cpu_identity.h"
#include "worker/device/cuda_plugin.h"

namespace harmony::fake_cuda {
namespace {

class CpuOnCuda : public worker::DeviceBackend {
 public:
  CpuOnCuda(cuda::Context context, cuda::RegionMapping region)
      : context_(std::move(context)), region_(std::move(region)) {}

  Bytes memory() const override { return region_.size(); }
  std::string ComputesOn() const override { return "a GPU of tests, " + worker::CpuComputesOn(); }
  absl::StatusOr<std::unique_ptr<worker::ComputeDevice>> Open(Bytes resident, Bytes workspace,
                                                              int compute_threads) override {
    if (resident + workspace > region_.size()) {
      return absl::InvalidArgumentError("the workspace does not fit the region");
    }
    // An address of the fake driver's is one of this process.
    std::byte* const memory =
        reinterpret_cast<std::byte*>(static_cast<uintptr_t>(region_.address()));
    return worker::CpuDevice::Create({.resident = memory,
                                      .workspace = workspace,
                                      .workspace_at = memory + resident.count(),
                                      .compute_threads = compute_threads});
  }

 private:
  const cuda::Context context_;
  const cuda::RegionMapping region_;
};

absl::StatusOr<std::unique_ptr<worker::DeviceBackend>> Open(const plan::DeviceSpec& device,
                                                            int fd) {
  HARMONY_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::LoadDriver());
  HARMONY_ASSIGN_OR_RETURN(cuda::Context context,
                           cuda::Context::Create(*driver, device.cuda_ordinal));
  HARMONY_ASSIGN_OR_RETURN(
      cuda::RegionMapping region,
      cuda::RegionMapping::Map(*driver, fd, device.memory, {device.cuda_ordinal}));
  return std::make_unique<CpuOnCuda>(std::move(context), std::move(region));
}

}  // namespace
}  // namespace harmony::fake_cuda

extern "C" __attribute__((visibility("default"))) const harmony::worker::CudaPlugin*
harmony_cuda_plugin() {
  static const harmony::worker::CudaPlugin plugin = {harmony::BuildIdentity(),
                                                     &harmony::fake_cuda::Open};
  return &plugin;
}
