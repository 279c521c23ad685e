#pragma once

// When one link (or core that several devices share), which serves commands in the order in which
// their time comes, has carried them, as modelled while they are issued. Mostly that is the order
// of issue; a command may also be issued late, behind one that took another way. PURE.

#include <algorithm>
#include <array>
#include <cstddef>

#include "common/base/units.h"

namespace harmony::dispatch {

class LinkClock {
 public:
  // Of a command whose lane is free, and whose waits are over, at `ready`: when it has been
  // carried.
  Nanos Serve(Nanos ready, Nanos duration) {
    const size_t later = LaterThan(ready);
    const Nanos end = FinishBehind(later, ready, duration);
    if (later > 0) {
      // What has been said of these stays; the link is busy for as much longer.
      free_ += std::max(Nanos(), end - Last(later - 1).begin);
      return end;
    }
    last_[served_++ % kRemembered] = {ready, free_, end - duration};
    free_ = end;
    return end;
  }
  // What Serve would say.
  Nanos FinishOf(Nanos ready, Nanos duration) const {
    return FinishBehind(LaterThan(ready), ready, duration);
  }

 private:
  struct Served {
    Nanos ready, free_before, begin;
  };
  static constexpr size_t kRemembered = 16;
  const Served& Last(size_t back) const { return last_[(served_ - 1 - back) % kRemembered]; }
  // Of the last ones served, how many are ready after `ready`: a command comes before them.
  size_t LaterThan(Nanos ready) const {
    size_t later = 0;
    while (later < served_ && later < kRemembered && Last(later).ready > ready) ++later;
    return later;
  }
  Nanos FinishBehind(size_t later, Nanos ready, Nanos duration) const {
    const Nanos from = later > 0 ? Last(later - 1).free_before : free_;
    return std::max(ready, from) + duration;
  }

  std::array<Served, kRemembered> last_;
  size_t served_ = 0;
  Nanos free_;
};

}  // namespace harmony::dispatch
