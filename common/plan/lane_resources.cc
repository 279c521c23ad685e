#include "common/plan/lane_resources.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "common/command/lane_kinds.h"

namespace harmony::plan {
namespace {

// To issue a command and to report its end takes 0.22 to 0.27 ms of a core, in all processes'
// threads but those of lanes: by their CPU time in steps of 250 commands, on two cores of a Xeon.
constexpr Nanos kIssue = Nanos(200'000);

}  // namespace

LaneResources ResourcesOfLanes(const Plan& plan, const CoreSharing& sharing) {
  const command::LaneTable table(static_cast<int>(plan.devices.size()));
  LaneResources resources{std::vector<int>(table.size()), std::vector<int>(table.size(), 1)};
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
  for (int device : sharing.devices) {
    resources.of_lane[table.IndexOf({command::LaneKind::kCompute, device})] = cores;
  }
  if (sharing.threads == 0) return resources;
  resources.cores = cores;
  resources.issue = Nanos(kIssue.count() / sharing.threads);
  for (int index = 0; index < table.size(); ++index) {
    switch (table.LaneAt(index).kind) {
      case command::LaneKind::kCompute:  // those of `sharing` take turns on the cores
        resources.of_cores.push_back(resources.of_lane[index] == cores ? 0 : 1);
        break;
      case command::LaneKind::kHostCompute:  // by as many threads as there are cores
        resources.of_cores.push_back(resources.capacity[cores]);
        break;
      case command::LaneKind::kHostIo:  // waits for the disk
        resources.of_cores.push_back(0);
        break;
      case command::LaneKind::kH2DBulk:
      case command::LaneKind::kH2DStream:
      case command::LaneKind::kD2H:
      case command::LaneKind::kP2P:  // by one thread
        resources.of_cores.push_back(1.0 / sharing.threads);
        break;
    }
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

std::vector<Nanos> TimesOf(const LaneResources& resources, const std::vector<LaneWork>& lanes) {
  std::vector<Nanos> times(lanes.size());
  for (size_t i = 0; i < lanes.size(); ++i) {
    times[static_cast<size_t>(resources.of_lane[i])] += lanes[i].busy;
  }
  if (resources.cores >= 0) {
    Nanos& of_cores = times[static_cast<size_t>(resources.cores)];
    for (size_t i = 0; i < lanes.size(); ++i) {
      of_cores += resources.issue * lanes[i].commands +
                  Nanos::FromSeconds(lanes[i].busy.seconds() * resources.of_cores[i]);
    }
  }
  for (size_t i = 0; i < times.size(); ++i) {
    times[i] = Nanos(times[i].count() / resources.capacity[i]);
  }
  return times;
}

Nanos BusiestResource(const LaneResources& resources, const std::vector<LaneWork>& lanes) {
  const std::vector<Nanos> times = TimesOf(resources, lanes);
  return *absl::c_max_element(times);
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
