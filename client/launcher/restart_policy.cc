#include "client/launcher/restart_policy.h"

#include <algorithm>

namespace harmony::client {

std::optional<Nanos> RestartPolicy::OnDeath(Nanos lifetime, bool killed) {
  if (lifetime >= kStable) young_deaths_ = young_own_deaths_ = 0;
  ++young_deaths_;
  if (!killed && ++young_own_deaths_ >= kGiveUpAfter && gives_up_) return std::nullopt;
  if (young_deaths_ == 1) return Nanos(0);
  int doublings = std::min(young_deaths_ - 2, 20);
  return std::min(kFirstDelay * (int64_t{1} << doublings),
                  killed ? kLongestDelayKilled : kLongestDelay);
}

}  // namespace harmony::client
