#pragma once

// The memory of a CUDA device that Harmony uses: one region, made by a process without a context
// and kept by its descriptor, so that it outlives every process that copies or computes in it.

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/units.h"
#include "common/cuda/driver.h"
#include "common/ipc/fd_passing.h"

namespace harmony::cuda {

// Physical memory of device `ordinal`, held by the descriptor alone. Needs no context. Contents
// are undefined. ResourceExhausted: the device has not so much free; InvalidArgument: no such
// device, or a size that is no multiple of the device's pages (plan::kGpuPage so far);
// FailedPrecondition: the device cannot export memory.
absl::StatusOr<ipc::UniqueFd> CreateRegion(const Driver& driver, int ordinal, Bytes size);

// A region as this process reaches it: mapped at one address, for copies and kernels of the devices
// in `accessors`. Unmaps at the end, when all work that uses it is done. Movable. The descriptor
// may be closed meanwhile.
class RegionMapping {
 public:
  static absl::StatusOr<RegionMapping> Map(const Driver& driver, int fd, Bytes size,
                                           const std::vector<int>& accessors);
  RegionMapping(RegionMapping&& other) noexcept;
  RegionMapping& operator=(RegionMapping&&) = delete;
  ~RegionMapping();

  CUdeviceptr address() const { return address_; }
  Bytes size() const { return size_; }

 private:
  RegionMapping(const Driver& driver, Bytes size) : driver_(&driver), size_(size) {}

  const Driver* driver_;
  Bytes size_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  bool imported_ = false, mapped_ = false;
};

}  // namespace harmony::cuda
