#pragma once

// Memory that a task has from its beginning and needs later: the places of what it makes. Until
// then its temporaries may lie there instead of taking workspace, and what belongs there is made
// there, so that it need not be copied.

#include <climits>
#include <cstddef>
#include <list>

#include "worker/device/best_fit.h"

namespace harmony::worker {

// Lends such places to what the thread that made it allocates where a SimAllocator is active;
// without effect elsewhere. Time is counted in whatever the owner counts its work in: until the
// work `needed_at` a place is for what is freed before, then it is offered to what belongs there.
// Both are the owner's word, which may be wrong: it looks where its results lie.
//
// One at a time for each thread; it belongs to a scope, which nothing that lies in its places
// outlives. What it lends may be freed by any thread.
class LentPlaces {
 public:
  static constexpr int kNever = INT_MAX;

  LentPlaces();
  ~LentPlaces();
  LentPlaces(const LentPlaces&) = delete;
  LentPlaces& operator=(const LentPlaces&) = delete;

  // The place is the caller's and holds nothing. Of one that is added twice the earlier time
  // counts. One that begins at no slot is not lent to temporaries, nor any to very small ones.
  void Add(void* place, size_t bytes, int needed_at);
  // The earliest of these times that is still to come; kNever where none is.
  int next_need() const { return next_need_; }
  // Whether the memory is lent, in a place that is needed at this time or before.
  bool Lends(const void* data, int time) const;
  // Whether the memory is in any of the places, lent or not.
  bool Contains(const void* data) const;
  // Lends the places up to that time to nobody any more. False: something lies in one, which is
  // still lent.
  [[nodiscard]] bool Recall(int time);

  // While one lives, what is allocated is needed at `last` for the last time, but for what is just
  // of the size of an offered place: it takes that, one at a time.
  class Lending {
   public:
    Lending(LentPlaces& places, int last);
    ~Lending();
    Lending(const Lending&) = delete;
    Lending& operator=(const Lending&) = delete;
    // REQUIRES: the place was added and recalled.
    void Offer(const void* place);

   private:
    LentPlaces& places_;
  };

  // For allocators: memory in a place that the calling thread lends or offers now, null where there
  // is none.
  static void* Take(size_t bytes);
  // Gives back what was taken so. False: it was not.
  static bool Give(void* data);

 private:
  struct Place {
    std::byte* begin;
    size_t bytes;
    int needed_at;
    BestFit fit;  // while it is lent
    bool lent = true;
    bool offered = false;
    bool taken = false;  // as a whole, since it was recalled

    bool Contains(const void* data) const { return begin <= data && data < begin + bytes; }
  };

  std::list<Place> places_;  // `fit`, `taken` under the mutex of all, the rest the owning thread's
  int next_need_ = kNever;
  bool lends_ = false;
  int last_ = kNever;
};

}  // namespace harmony::worker
