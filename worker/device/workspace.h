#pragma once

// The memory of a device's workspace, where a worker's temporaries lie.

#include <cstddef>

#include "absl/status/statusor.h"
#include "common/base/units.h"

namespace harmony::worker {

// Private memory of exactly the bytes asked for, in huge pages where the system has them (fewer TLB
// misses in every matrix product), untouched until it is used, not in core dumps. Movable; unmapped
// at the end.
class Workspace {
 public:
  // ResourceExhausted: the system refuses to map that much.
  static absl::StatusOr<Workspace> Map(Bytes size);
  Workspace(Workspace&& other) noexcept;
  Workspace& operator=(Workspace&&) = delete;
  ~Workspace();

  std::byte* data() const { return data_; }
  Bytes size() const { return size_; }

 private:
  Workspace(std::byte* mapping, Bytes mapped, std::byte* data, Bytes size)
      : mapping_(mapping), mapped_(mapped), data_(data), size_(size) {}

  std::byte* mapping_;
  Bytes mapped_;  // a huge page more than the size, so that it can begin at one
  std::byte* data_;
  Bytes size_;
};

}  // namespace harmony::worker
