#pragma once

// When a process that runs, as far as the kernel knows, is taken to hang. PURE: the caller hands in
// the time and the word that the process adds to (common/ipc/heartbeat.h).

#include <cstdint>

#include "common/base/units.h"

namespace harmony::client {

// One per supervised process: the only rule, for every kind of process and at every time of its
// life. A process hangs when its word has stood still for the limit. One that hung before its first
// beat may only have been slow to start (its libraries on a slow disk): so that such a process gets
// to run at all, its next incarnation has twice the time for that beat.
//
// `now` is measured by a clock that stands still while the launcher itself is stopped
// (common/base/attended_clock.h), in all calls the same.
class HeartbeatWatch {
 public:
  // A process beats several times a second, from a thread that does nothing else: it is silent for
  // seconds when the machine is short of memory, and for 30 s when something is wrong.
  static constexpr Nanos kDefaultLimit = Seconds(30);
  static constexpr int kMostDoublings = 4;  // of the default limit, 8 minutes

  // A limit of zero: nothing ever hangs.
  explicit HeartbeatWatch(Nanos limit = kDefaultLimit) : limit_(limit) {}

  // An incarnation starts; its word is 0.
  void OnStart(Nanos now);
  // True: it hangs and has to be killed. Then true again only after another limit.
  bool OnLook(uint64_t beats, Nanos now);
  // How long the word may stand still now.
  Nanos limit() const { return limit_ * (int64_t{1} << (beats_ == 0 ? slow_starts_ : 0)); }

 private:
  Nanos limit_;
  uint64_t beats_ = 0;   // when it was last looked at
  Nanos since_;          // when it last changed
  int slow_starts_ = 0;  // incarnations in a row that were killed before their first beat
};

}  // namespace harmony::client
