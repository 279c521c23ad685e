#include "coordinator/core/modelled_clock.h"

#include <algorithm>

namespace harmony {

ModelledClock::ModelledClock(const Plan& plan)
    : lanes_(static_cast<size_t>(LaneTable(static_cast<int>(plan.devices.size())).size())),
      links_(LinksOfLanes(plan)),
      link_clocks_(lanes_.size()) {}

Nanos ModelledClock::Issue(int index, Nanos ready, Nanos duration) {
  Lane& lane = lanes_[static_cast<size_t>(index)];
  LinkClock& link = link_clocks_[static_cast<size_t>(link_of(index))];
  lane.free_at = link.Serve(std::max(ready, lane.free_at), duration);
  if (lane.finishes.empty()) lane.finishes.resize(kRemembered);
  lane.finishes[++lane.issued % kRemembered] = lane.free_at;
  return lane.free_at;
}

Nanos ModelledClock::FinishIfIssued(int index, Nanos ready, Nanos duration) const {
  const Lane& lane = lanes_[static_cast<size_t>(index)];
  const LinkClock& link = link_clocks_[static_cast<size_t>(link_of(index))];
  return link.FinishOf(std::max(ready, lane.free_at), duration);
}

Nanos ModelledClock::FinishOf(int index, uint64_t value) const {
  const Lane& lane = lanes_[static_cast<size_t>(index)];
  return lane.issued - value < kRemembered ? lane.finishes[value % kRemembered] : Nanos();
}

}  // namespace harmony
