#pragma once

#include <atomic>
#include <cstdint>
#include <map>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/units.h"

namespace harmony::runtime {

// What is done within the modelled time. Computations share the processors with everything else; a
// copy is done at once, as by a copy engine, which does not wait for processors.
enum class PacedWork { kCompute, kCopy };

// Makes work on a modelled resource (one direction of a link, a device's arithmetic) take at least
// its modelled time, so that a server can be studied on a smaller machine. The resource serves one
// reservation after the other, in the order they are made, and of one moment in the order of issue,
// as plan::LaneResources says; two lanes that share a link share its pacer.
//
// Thread-safe.
class Pacer {
 public:
  // `sleep_until` (REQUIRES: sleeps until the given time of `clock`) is replaced in tests.
  using SleepUntil = void (*)(Nanos deadline);
  explicit Pacer(PacedWork work, const Clock* clock = &MonotonicClock(),
                 SleepUntil sleep_until = nullptr);

  struct Reservation {
    Nanos deadline;  // when the modelled work ends, unless it is pushed back
    Nanos duration;
    uint64_t number = 0;
  };

  // The resource is taken for `duration` from now, or from when it falls free. Lanes whose commands
  // may start at the same moment come here in whatever order their threads wake up: a reservation
  // with a lower `issued` than the last one's, made hardly later, goes before it and pushes it
  // back. Else one long copy of weights would hold up a small one, and with it a device, or not, as
  // it happens.
  Reservation Reserve(Nanos duration, uint64_t issued = 0);

  // Returns at the deadline or, when that has passed, at once. More than 2% (and more than a
  // timer's jitter) of the modelled time late, by the work or by a late wake-up, is counted as
  // overrun.
  void FinishAt(const Reservation& reservation);

  uint64_t paced() const { return paced_.load(std::memory_order_relaxed); }
  uint64_t overruns() const { return overruns_.load(std::memory_order_relaxed); }

 private:
  const PacedWork work_;
  const Clock* const clock_;
  const SleepUntil sleep_until_;
  struct Last {
    uint64_t number = 0, issued = 0;
    Nanos made, duration;
  };
  // When a reservation that ended at `deadline` ends now.
  Nanos DeadlineOf(const Reservation& reservation);

  Mutex mutex_;
  Nanos free_at_ ABSL_GUARDED_BY(mutex_);
  Last last_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Nanos> pushed_back_ ABSL_GUARDED_BY(mutex_);  // by number; until it is over
  std::atomic<uint64_t> paced_{0}, overruns_{0};
};

// Time to move `size` at `rate`; REQUIRES: rate.value > 0.
Nanos ModelledDuration(Bytes size, BytesPerSecond rate);

}  // namespace harmony::runtime
