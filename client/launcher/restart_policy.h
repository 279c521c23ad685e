#pragma once

// When a process that died is started again. PURE: the caller hands in how long it lived.

#include <optional>

#include "common/base/units.h"

namespace harmony::client {

// One per supervised process. The first death of a row is answered at once; a process that keeps
// dying young is started ever later, and (where that is the policy) given up when it does so by
// itself. A process that
// somebody killed (SIGKILL: an operator, the out-of-memory killer, the coordinator fencing a lost
// process) is never given up, and waits a second at most.
class RestartPolicy {
 public:
  explicit RestartPolicy(bool gives_up = true) : gives_up_(gives_up) {}

  // A life at least this long breaks a row of deaths.
  static constexpr Nanos kStable = Seconds(5);
  static constexpr Nanos kFirstDelay = Millis(50);
  static constexpr Nanos kLongestDelay = Seconds(5);
  static constexpr Nanos kLongestDelayKilled = Seconds(1);
  static constexpr int kGiveUpAfter = 8;

  // Records a death after `lifetime`; `killed`: by SIGKILL. Returns how long to wait before the
  // next start, or nothing when the process is to be given up.
  std::optional<Nanos> OnDeath(Nanos lifetime, bool killed);

 private:
  bool gives_up_;
  int young_deaths_ = 0;      // in a row, all causes
  int young_own_deaths_ = 0;  // of these, by itself
};

}  // namespace harmony::client
