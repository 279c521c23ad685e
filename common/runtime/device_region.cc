#include "common/runtime/device_region.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/status.h"

namespace harmony {

absl::StatusOr<DeviceRegion> DeviceRegion::Map(int fd, Bytes expected) {
  struct stat info;
  if (fstat(fd, &info) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("device memory, descriptor ", fd, ": ", strerror(errno)));
  }
  if (Bytes(info.st_size) != expected) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device memory, descriptor ", fd, ": has ", FormatBytesExact(Bytes(info.st_size)),
        ", the device is to have ", FormatBytesExact(expected)));
  }
  void* data =
      mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("mapping ", FormatBytesExact(expected),
                                                     " of device memory: ", strerror(errno)));
  }
  // Fewer page faults where the kernel has huge pages for shared memory; a hint only.
  (void)madvise(data, static_cast<size_t>(info.st_size), MADV_HUGEPAGE);
  return DeviceRegion(static_cast<std::byte*>(data), expected);
}

DeviceRegion::DeviceRegion(DeviceRegion&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, Bytes(0))) {}

DeviceRegion& DeviceRegion::operator=(DeviceRegion&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

DeviceRegion::~DeviceRegion() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_.count()));
}

}  // namespace harmony
