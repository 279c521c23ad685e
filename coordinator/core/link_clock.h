#pragma once

// When one link, which serves commands in the order in which their time comes, has carried them, as
// modelled while they are issued. Mostly that is the order of issue; a command may also be issued
// late, behind one that took another way. PURE.

#include <algorithm>
#include <array>
#include <cstddef>

#include "common/base/units.h"

namespace harmony {

class LinkClock {
 public:
  // Of a command whose lane is free, and whose waits are over, at `ready`: when it has been
  // carried.
  Nanos Serve(Nanos ready, Nanos duration) {
    Nanos from = free_;
    size_t later = 0;  // of the last ones, those that are ready after it: it comes before them
    while (later < served_ && later < kRemembered && Last(later).ready > ready) {
      from = Last(later++).free_before;
    }
    const Nanos end = std::max(ready, from) + duration;
    if (later > 0) {
      // What has been said of these stays; the link is busy for as much longer.
      free_ += std::max(Nanos(), end - Last(later - 1).begin);
      return end;
    }
    last_[served_++ % kRemembered] = {ready, free_, end - duration};
    free_ = end;
    return end;
  }

 private:
  struct Served {
    Nanos ready, free_before, begin;
  };
  static constexpr size_t kRemembered = 16;
  const Served& Last(size_t back) const { return last_[(served_ - 1 - back) % kRemembered]; }

  std::array<Served, kRemembered> last_;
  size_t served_ = 0;
  Nanos free_;
};

}  // namespace harmony
