#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/base/units.h"

namespace harmony {

// The memory of one sim device: a shared anonymous file that the supervisor creates, mapped by the
// swapper and by the device's worker. Unmapped at destruction; the descriptor is the caller's.
// Movable. Access to the bytes is ordered by semaphores, never by this class.
class DeviceRegion {
 public:
  // Maps all of `fd`. FailedPrecondition when its size is not `expected`; ResourceExhausted when
  // it cannot be mapped.
  static absl::StatusOr<DeviceRegion> Map(int fd, Bytes expected);

  DeviceRegion(DeviceRegion&& other) noexcept;
  DeviceRegion& operator=(DeviceRegion&& other) noexcept;
  ~DeviceRegion();

  std::byte* data() const { return data_; }
  Bytes size() const { return size_; }

  // [offset, offset + size) lies inside.
  bool Contains(Bytes offset, Bytes size) const {
    return offset.count() >= 0 && size.count() >= 0 && offset <= size_ && size <= size_ - offset;
  }

 private:
  DeviceRegion(std::byte* data, Bytes size) : data_(data), size_(size) {}

  std::byte* data_ = nullptr;
  Bytes size_;
};

}  // namespace harmony
