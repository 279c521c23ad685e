#include "coordinator/dispatch/issue/modelled_clock.h"

#include <algorithm>
#include <utility>

namespace harmony::dispatch {

ModelledClock::ModelledClock(plan::LaneResources resources)
    : resources_(std::move(resources)),
      lanes_(resources_.of_lane.size()),
      servers_of_(plan::ServersOf(resources_)),
      servers_(servers_of_.count) {}

size_t ModelledClock::ServerFor(int lane, Nanos ready, Nanos duration) const {
  const plan::LaneServers::Range servers = servers_of_.of_lane[static_cast<size_t>(lane)];
  size_t best = servers.first;
  for (size_t i = best + 1; i < servers.first + servers.count; ++i) {
    if (servers_[i].FinishOf(ready, duration) < servers_[best].FinishOf(ready, duration)) best = i;
  }
  return best;
}

Nanos ModelledClock::Issue(int index, Nanos ready, Nanos duration, Nanos stall) {
  Lane& lane = lanes_[static_cast<size_t>(index)];
  const Nanos from = std::max(ready, lane.free_at);
  lane.free_at = servers_[ServerFor(index, from, duration)].Serve(from, duration) + stall;
  const size_t at = lane.issued++ % kRemembered;
  if (at == lane.finishes.size()) {
    lane.finishes.push_back(lane.free_at);
  } else {
    lane.finishes[at] = lane.free_at;
  }
  return lane.free_at;
}

Nanos ModelledClock::FinishIfIssued(int index, Nanos ready, Nanos duration) const {
  const Nanos from = std::max(ready, lanes_[static_cast<size_t>(index)].free_at);
  return servers_[ServerFor(index, from, duration)].FinishOf(from, duration);
}

Nanos ModelledClock::FinishOf(int index, uint64_t value) const {
  const Lane& lane = lanes_[static_cast<size_t>(index)];
  return lane.issued - value < kRemembered ? lane.finishes[(value - 1) % kRemembered] : Nanos();
}

}  // namespace harmony::dispatch
