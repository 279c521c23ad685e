#include "common/plan/lane_resources.h"

#include <algorithm>

#include "common/command/lane_kinds.h"

namespace harmony::plan {

LaneResources ResourcesOfLanes(const Plan& plan, const CoreSharing& sharing) {
  const command::LaneTable table(static_cast<int>(plan.devices.size()));
  LaneResources resources{std::vector<int>(table.size()), std::vector<int>(table.size(), 1),
                          std::vector<int>(table.size(), -1)};
  for (int index = 0; index < table.size(); ++index) {
    command::Lane lane = table.LaneAt(index);
    const command::LaneLink link = command::TraitsOf(lane.kind).link;
    for (int kind = 0; link != command::LaneLink::kNone && kind < static_cast<int>(lane.kind);
         ++kind) {
      if (command::TraitsOf(static_cast<command::LaneKind>(kind)).link == link)
        lane.kind = static_cast<command::LaneKind>(kind);
    }
    if (link == command::LaneLink::kH2D || link == command::LaneLink::kD2H) {
      const int root = plan.devices[lane.device].root;
      for (int d = 0; root > 0 && d < lane.device; ++d) {
        if (plan.devices[d].root == root) lane.device = d;
      }
    }
    resources.of_lane[index] = table.IndexOf(lane);
  }
  if (sharing.devices.empty()) return resources;
  const int cores = table.IndexOf({command::LaneKind::kCompute, sharing.devices.front()});
  resources.capacity[cores] = std::max(sharing.at_once, 1);
  if (sharing.for_all_lanes) resources.also_takes.assign(table.size(), cores);
  for (int device : sharing.devices) {
    const int compute = table.IndexOf({command::LaneKind::kCompute, device});
    resources.of_lane[compute] = cores;
    resources.also_takes[compute] = -1;
  }
  return resources;
}

LaneServers ServersOf(const LaneResources& resources) {
  LaneServers servers;
  std::vector<LaneServers::Range> ranges(resources.of_lane.size());  // by resource
  for (int resource : resources.of_lane) {
    LaneServers::Range& range = ranges[static_cast<size_t>(resource)];
    if (range.count == 0) {
      const int capacity = resources.capacity[static_cast<size_t>(resource)];
      range = {servers.count, static_cast<size_t>(capacity)};
      servers.count += range.count;
    }
    servers.of_lane.push_back(range);
  }
  return servers;
}

Nanos BusiestResource(const LaneResources& resources, const std::vector<Nanos>& busy) {
  std::vector<Nanos> sums(busy.size());
  for (size_t lane = 0; lane < busy.size(); ++lane) {
    sums[resources.of_lane[lane]] += busy[lane];
    if (const int taken = resources.also_takes[lane]; taken >= 0) sums[taken] += busy[lane];
  }
  Nanos most;
  for (size_t i = 0; i < sums.size(); ++i) {
    most = std::max(most, Nanos(sums[i].count() / resources.capacity[i]));
  }
  return most;
}

ResourceClock::Service ResourceClock::Start(int lane, Nanos ready, Nanos duration) {
  const LaneServers::Range& servers = servers_.of_lane[static_cast<size_t>(lane)];
  const auto begin = free_.begin() + static_cast<std::ptrdiff_t>(servers.first);
  const auto server = std::min_element(begin, begin + static_cast<std::ptrdiff_t>(servers.count));
  *server = std::max(ready, *server) + duration;
  return {static_cast<size_t>(server - free_.begin()), *server};
}

void ResourceClock::Free(int lane, Nanos now) {
  const LaneServers::Range& servers = servers_.of_lane[static_cast<size_t>(lane)];
  std::fill_n(free_.begin() + static_cast<std::ptrdiff_t>(servers.first), servers.count, now);
}

}  // namespace harmony::plan
