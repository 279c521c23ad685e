#pragma once

// The workspace of a sim device: LibTorch's CPU allocator, confined to a span of memory. Going over
// it is LibTorch's out-of-memory error, naming sizes: never a silent spill.

#include <cstddef>
#include <memory>

#include "common/base/units.h"
#include "worker/device/best_fit.h"

namespace harmony::worker {

// LibTorch's out-of-memory error, naming the sizes, as any allocator of a workspace throws it.
[[noreturn]] void RaiseOutOfMemory(Bytes wanted, const BestFit::Usage& usage);

// Once activated, every tensor LibTorch allocates on the CPU comes out of the span, as BestFit
// places it: the same sequence of allocations gives the same addresses. What LentPlaces have room
// for lies there instead. What MKL, oneDNN and OpenMP allocate for themselves lies outside (library
// overhead, not under the cap).
//
// The caller owns the span, which must outlive every tensor. Tensors allocated before the
// activation are freed as they were allocated. Thread-safe.
class SimAllocator {
 public:
  // REQUIRES: base is aligned to slots. The memory is not touched until it is used.
  SimAllocator(void* base, Bytes size);
  ~SimAllocator();
  SimAllocator(const SimAllocator&) = delete;
  SimAllocator& operator=(const SimAllocator&) = delete;

  // Makes this LibTorch's CPU allocator for the rest of the process, or until Deactivate.
  // REQUIRES: no other SimAllocator is active.
  void Activate();
  // Back to the allocator before. Tensors still alive keep their memory in the span.
  void Deactivate();

  using Usage = BestFit::Usage;
  Usage usage() const;
  void ResetPeak();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace harmony::worker
