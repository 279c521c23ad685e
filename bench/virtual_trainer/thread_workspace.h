#pragma once

// LibTorch's CPU allocator, confined to a span of memory by thread: several devices of one process
// compute at the same time, each task in the scratch that it has of its device's memory.

#include <cstddef>

#include "absl/types/span.h"
#include "worker/device/best_fit.h"

namespace harmony::bench {

// While it lives, all that the calling thread makes LibTorch allocate lies in the span; going over
// it is LibTorch's out-of-memory error. What other threads allocate lies where it did before.
// REQUIRES: at a multiple of kSlotAlignment; LibTorch computes on the calling thread alone; one at
// a time on a thread; what is allocated meanwhile is freed meanwhile, by that thread.
class ThreadWorkspace {
 public:
  explicit ThreadWorkspace(absl::Span<std::byte> span);
  ~ThreadWorkspace();
  ThreadWorkspace(const ThreadWorkspace&) = delete;
  ThreadWorkspace& operator=(const ThreadWorkspace&) = delete;

 private:
  friend class ThreadAllocator;
  const absl::Span<std::byte> span_;
  worker::BestFit fit_;
};

}  // namespace harmony::bench
