#pragma once

// Memory that a tensor about to be made may take instead of workspace, so that it need not be
// copied to where it belongs.

#include <cstddef>
#include <vector>

namespace harmony::worker {

// While one lives, an allocation of just the size of a place, made by the thread that offers it,
// takes that place. Which of several tensors of that size does is not known, and it may be one that
// is freed again: the offering code looks where its results lie. Of use where a SimAllocator is
// active, without effect elsewhere. One at a time for each thread; it belongs to a scope.
class OfferedPlaces {
 public:
  OfferedPlaces();
  ~OfferedPlaces();
  OfferedPlaces(const OfferedPlaces&) = delete;
  OfferedPlaces& operator=(const OfferedPlaces&) = delete;

  // The place is the caller's, of `bytes` bytes, and outlives every tensor that takes it.
  void Offer(void* place, size_t bytes);
  // Whether any was taken.
  bool taken() const { return taken_; }

  // For allocators: a place of this size that the calling thread has been offered, null where there
  // is none. Each is given once.
  static void* Take(size_t bytes);

 private:
  struct Place {
    void* data;
    size_t bytes;
  };
  std::vector<Place> places_;
  bool taken_ = false;
};

}  // namespace harmony::worker
