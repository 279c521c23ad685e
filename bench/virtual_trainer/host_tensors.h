#pragma once

// What a device's tensors have in the host's memory: copies that are valid until the device changes
// the tensor.

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "bench/baselines/engine/recording.h"

namespace harmony::bench {

// Threads use different tensors at a time.
class HostTensors {
 public:
  void Grow(baselines::Tensor tensor) {
    if (copies_.size() <= static_cast<size_t>(tensor))
      copies_.resize(static_cast<size_t>(tensor) + 1);
  }
  // REQUIRES of all: it was grown to the tensor, before threads used it.
  bool has(baselines::Tensor tensor) const { return at(tensor).valid; }
  absl::Span<const std::byte> get(baselines::Tensor tensor) const { return at(tensor).data; }
  // A copy of so many bytes, for the caller to fill.
  absl::Span<std::byte> Replace(baselines::Tensor tensor, size_t size) {
    Copy& copy = at(tensor);
    copy.valid = true;
    copy.data.resize(size);
    return absl::MakeSpan(copy.data);
  }
  void Invalidate(baselines::Tensor tensor) { at(tensor).valid = false; }
  void Free(baselines::Tensor tensor) { at(tensor) = Copy(); }

 private:
  struct Copy {
    bool valid = false;
    std::vector<std::byte> data;
  };
  Copy& at(baselines::Tensor tensor) { return copies_[static_cast<size_t>(tensor)]; }
  const Copy& at(baselines::Tensor tensor) const { return copies_[static_cast<size_t>(tensor)]; }

  std::vector<Copy> copies_;
};

}  // namespace harmony::bench
