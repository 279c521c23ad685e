#pragma once

// What binds a step: how busy each lane is, the chain of commands that the step consists of, and a
// picture of it. PURE.

#include <string>
#include <vector>

#include "coordinator/planner/timing/evaluation.h"

namespace harmony::planner {

struct LaneLoad {
  std::string name;
  Nanos busy;          // per step
  double share = 0;    // of the step
  int64_t bytes = 0;   // per step
  Nanos on_the_chain;  // of the chain of commands from one end of a step to the next
};

struct Bottleneck {
  // That have something to do, as the LaneTable orders them; then the links and
  // cores that several of them share, by each.
  std::vector<LaneLoad> lanes;
  int busiest = -1;     // index
  std::string verdict;  // what binds, a sentence
};

// REQUIRES: an estimate with its timeline.
Bottleneck BottleneckOf(const Estimate& estimate, int num_devices);

// A row a lane over the estimate's step, `width` columns: what the lane does most in each of them.
struct TimelineRow {
  std::string lane, cells;
};
std::vector<TimelineRow> DrawTimeline(const Estimate& estimate, int num_devices, int width);
// What the letters of the rows mean.
const char* TimelineLegend();

}  // namespace harmony::planner
