#pragma once

#include <algorithm>

#include "common/base/clock.h"

namespace harmony {

// The time that its owner has lived through: as `clock`, but between two looks at most
// `longest_gap` passes. Who holds others to deadlines measures these by it: after it was itself
// stopped (SIGSTOP, a machine that slept, a debugger), the time of which it saw nothing counts
// against nobody, and all have as much left to answer as they had before.
//
// The owner looks much more often than every `longest_gap`, which is far below its deadlines. One
// thread at a time.
class AttendedClock : public Clock {
 public:
  AttendedClock(const Clock& clock, Nanos longest_gap)
      : clock_(clock), longest_gap_(longest_gap), last_look_(clock.Now()), now_(last_look_) {}

  Nanos Now() const override {
    const Nanos look = clock_.Now();
    now_ += std::min(look - last_look_, longest_gap_);
    last_look_ = look;
    return now_;
  }

 private:
  const Clock& clock_;
  const Nanos longest_gap_;
  mutable Nanos last_look_;  // by clock_
  mutable Nanos now_;
};

}  // namespace harmony
