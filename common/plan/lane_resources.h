#pragma once

// What carries out the commands of lanes, and how many of them at a time: a link carries one copy
// after the other, whichever lane it came by, and emulated devices compute on cores of which there
// may be fewer than devices. One rule for all that model a run. PURE.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/units.h"
#include "common/plan/plan.h"

namespace harmony::plan {

// Devices that compute on the same cores. Empty: each device has its own.
struct CoreSharing {
  std::vector<int> devices;  // ascending
  int at_once = 1;           // of them compute at full speed
  // Threads of a task, where the cores are the machine's, which copy and update as well; 0: they do
  // nothing but compute.
  int threads = 0;
};

// A resource serves its lanes' commands in the order in which all they wait for is there (of one
// moment, of issue), each for its whole time, `capacity` at a time. Its number is its first lane's.
struct LaneResources {
  std::vector<int> of_lane;   // by LaneTable index
  std::vector<int> capacity;  // by resource; 1 where no lane has the number
  // The machine's cores, where its lanes take turns on them: a resource; -1: they do not.
  int cores = -1;
  // By lane: so much of the cores' capacity its commands take while other lanes compute there. They
  // do not wait until tasks have ended, which lose what is taken from them.
  std::vector<double> of_cores = {};
  // What issuing a command takes of them.
  Nanos issue = {};
};
// Of a lane in one step.
struct LaneWork {
  Nanos busy;
  int64_t commands = 0;
};
// The two lanes into a device share its link, and so do devices of the same root; the compute lanes
// of `sharing` share cores, of which other lanes take time where it says so; other lanes share
// nothing.
LaneResources ResourcesOfLanes(const Plan& plan, const CoreSharing& sharing);

// The servers of all resources, numbered without gaps: those of a lane's resource, by lane.
struct LaneServers {
  struct Range {
    size_t first = 0, count = 0;
  };
  std::vector<Range> of_lane;
  size_t count = 0;
};
LaneServers ServersOf(const LaneResources& resources);

// The least time in which each resource carries out its lanes' commands and, of the machine's
// cores, what else is taken from them.
std::vector<Nanos> TimesOf(const LaneResources& resources, const std::vector<LaneWork>& lanes);
// In which all do.
Nanos BusiestResource(const LaneResources& resources, const std::vector<LaneWork>& lanes);

// When resources have carried out what was started on them, in the order of its starts.
class ResourceClock {
 public:
  explicit ResourceClock(const LaneResources& resources)
      : servers_(ServersOf(resources)), free_(servers_.count) {}

  struct Service {
    size_t server;  // unique over all resources
    Nanos end;
  };
  // Of a lane's command that may start at `ready`. It takes the server that is free first.
  Service Start(int lane, Nanos ready, Nanos duration);
  // What was started on the lane's resource is given up.
  void Free(int lane, Nanos now);
  size_t num_servers() const { return free_.size(); }

 private:
  LaneServers servers_;
  std::vector<Nanos> free_;  // by server
};

}  // namespace harmony::plan
