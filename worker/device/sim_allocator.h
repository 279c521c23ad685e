#pragma once

// The workspace of a sim device: LibTorch's CPU allocator, confined to a span of memory. Going over
// it is LibTorch's out-of-memory error, naming sizes: never a silent spill.

#include <cstddef>
#include <memory>

#include "common/base/units.h"

namespace harmony::worker {

// Once activated, every tensor LibTorch allocates on the CPU comes out of the span: best fit, the
// lowest address among equals, neighbours coalesced, aligned to slots. The same sequence of
// allocations gives the same addresses. What takes an OfferedPlace lies there instead. What MKL,
// oneDNN and OpenMP allocate for themselves lies outside (library overhead, not under the cap).
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

  struct Usage {
    Bytes capacity;
    Bytes current;      // in use now
    Bytes peak;         // the most since the last ResetPeak
    Bytes peak_extent;  // one past the highest byte in use since then: what a span would need
    Bytes largest_free;
  };
  Usage usage() const;
  void ResetPeak();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace harmony::worker
