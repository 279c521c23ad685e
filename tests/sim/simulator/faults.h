#pragma once

// When the faults of one kind happen in a simulation: numbers of events, drawn beforehand. PURE.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/base/random.h"

namespace harmony::sim {

class FaultTimes {
 public:
  // Spread over the first `span` events.
  FaultTimes(int count, int64_t span, CounterRandom& random) {
    for (int i = 0; i < count; ++i) {
      events_.push_back(static_cast<int64_t>(random.Below(static_cast<uint64_t>(span))) + 1);
    }
    std::sort(events_.begin(), events_.end(), std::greater<>());
  }

  bool Due(int64_t event) const { return !events_.empty() && events_.back() <= event; }
  // One that is due, if any, has happened.
  bool Take(int64_t event) {
    if (!Due(event)) return false;
    events_.pop_back();
    return true;
  }

 private:
  std::vector<int64_t> events_;  // the next one last
};

}  // namespace harmony::sim
