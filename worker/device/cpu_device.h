#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <thread>

#include "worker/device/compute_device.h"
#include "worker/device/sim_allocator.h"
#include "worker/device/workspace.h"

namespace harmony::worker {

// A device whose memory is this process's and whose operations are LibTorch's on the CPU: a sim
// device, and what tests and the plain trainer compute on.
class CpuDevice : public ComputeDevice {
 public:
  struct Options {
    std::byte* resident = nullptr;  // the caller's, which outlives the device
    // A workspace of that size, under a hard cap: until the device is destroyed LibTorch takes its
    // tensors from there, so there is one such device at a time. Without: as LibTorch does.
    std::optional<Bytes> workspace;
    // Where it lies, at a multiple of kSlotAlignment; the caller's, as above. Null: it is mapped.
    std::byte* workspace_at = nullptr;
    int compute_threads = 0;  // 0: as many as the calling thread has set
  };
  // ResourceExhausted: the system refuses to map the workspace.
  static absl::StatusOr<std::unique_ptr<CpuDevice>> Create(const Options& options);
  // One without a workspace of its own.
  CpuDevice() : CpuDevice(Options{}, std::nullopt) {}
  ~CpuDevice() override;

  LayerTarget target() const override { return {}; }
  DeviceAddress resident() const override;
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
  Usage usage() const override;

 private:
  CpuDevice(const Options& options, std::optional<Workspace> mapped);

  const Options options_;
  const std::optional<Workspace> mapped_;
  std::optional<SimAllocator> allocator_;
  std::thread::id prepared_;  // the thread whose number of threads is set
  int first_bad_ = -1;        // the tag of the first check that found something
};

}  // namespace harmony::worker
