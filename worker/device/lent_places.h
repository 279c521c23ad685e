#pragma once

// Memory that a task has from its beginning and needs later: the places of what it makes. Until
// then its temporaries may lie there instead of taking workspace, and what belongs there is made
// there, so that it need not be copied.

#include <climits>
#include <cstddef>
#include <list>

#include "worker/device/best_fit.h"
#include "worker/device/device_tensor.h"

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
  // A time behind the end of any work; what is added to it is a time of the work that takes up what
  // this one leaves.
  static constexpr int kLater = 1 << 30;

  // One of several pieces of work, each with a time of its own from 0 on. The places from before
  // are lent throughout, unless the work says when it needs them; those that it adds are forgotten
  // at its end, and nothing lies in them then.
  class Work {
   public:
    explicit Work(LentPlaces& places);
    ~Work();
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   private:
    LentPlaces& places_;
  };

  LentPlaces();
  ~LentPlaces();
  LentPlaces(const LentPlaces&) = delete;
  LentPlaces& operator=(const LentPlaces&) = delete;

  // The place is the caller's and holds nothing, but for what this object has lent it to. Of one
  // that is added twice in a piece of work the earlier time counts. One that begins at no slot is
  // not lent to temporaries, nor any to very small ones.
  void Add(void* place, size_t bytes, int needed_at);
  void Add(const DeviceTensor& place, int needed_at);
  // Lends the places only to the end of what lies there now, and again where they are added again.
  void Reclaim();
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
    BestFit fit;             // while it is lent
    bool in_work = false;    // added by the present one
    bool stated = false;     // its time, by the present one
    bool reclaimed = false;  // while something lay there
    bool lent = true;
    bool offered = false;
    bool taken = false;  // as a whole, since it was recalled

    bool Contains(const void* data) const { return begin <= data && data < begin + bytes; }
  };

  void FindNextNeed();

  std::list<Place> places_;  // `fit`, `taken` under the mutex of all, the rest the owning thread's
  int next_need_ = kNever;
  bool works_ = false;
  bool lends_ = false;
  int last_ = kNever;
};

}  // namespace harmony::worker
