#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "common/base/mutex.h"
#include "worker/device/best_fit.h"
#include "worker/device/compute_device.h"

namespace harmony::worker::cuda {

// A GPU while a job runs on it: part of one region is bound, the rest is the workspace, from which
// LibTorch takes its tensors (workspace_allocator.h). All work goes to the default stream, in the
// order in which it is started: so memory that is given back may be taken at once by what is
// started later.
class CudaDevice : public ComputeDevice {
 public:
  struct Options {
    int ordinal = 0;
    DeviceAddress region;  // mapped in the primary context, and longer than the device lives
    Bytes resident, workspace;
  };
  // Unavailable: the GPU has none of the few MiB left that a device takes beside the region.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(const Options& options);
  ~CudaDevice() override;

  LayerTarget target() const override { return {LayerTarget::Kind::kCuda, options_.ordinal}; }
  DeviceAddress resident() const override { return options_.region; }
  void PrepareThread() override;
  absl::StatusOr<std::unique_ptr<WorkspaceBlock>> Allocate(Bytes size) override;
  void Zero(DeviceAddress address, Bytes size) override;
  void Convert(const DeviceTensor& from, const DeviceTensor& to) override;
  void Add(const DeviceTensor& from, const DeviceTensor& to, DType type) override;
  void CheckFinite(const DeviceTensor& tensor, int tag) override;
  const RowKernels& row_kernels() const override;
  absl::StatusOr<int> Synchronize() override;
  absl::Status Write(DeviceAddress to, absl::Span<const std::byte> from) override;
  absl::Status Read(DeviceAddress from, absl::Span<std::byte> to) override;
  // An H200 was at 1830 MHz in the first 0.2 s, and from the second on at 1725.
  Nanos warm_up() const override { return Millis(1500); }
  Usage usage() const override;

  // For the allocator: an address in the workspace. None when it is full, with the usage then.
  DeviceAddress Take(Bytes size, BestFit::Usage& usage);
  void Give(DeviceAddress address);

 private:
  explicit CudaDevice(const Options& options);

  // Notes the first error since the last Synchronize.
  void Note(cudaError_t result);
  DeviceAddress flag() const;     // of the checks: an int
  DeviceAddress scratch() const;  // of conversions in place
  DeviceAddress workspace() const { return options_.region + options_.resident; }

  const Options options_;
  mutable Mutex mutex_;
  BestFit fit_ ABSL_GUARDED_BY(mutex_);
  DeviceAddress own_;  // beside the region
  cudaError_t failure_ = cudaSuccess;
};

}  // namespace harmony::worker::cuda
