#pragma once

// The best cuts where one GPU runs all tasks (vDP, or one GPU): there the published cost model
// without prefetch adds up, and dynamic programming finds the optimum. PURE.

#include <vector>

#include "bench/published_planner/cost_model/pack_costs.h"
#include "bench/published_planner/cost_model/pipeline_evaluator.h"

namespace harmony::published {

// How a GPU shares the links, and what it adds to each backward pack.
struct SerialMachine {
  int busy_gpus = 1;
  double allreduce_s_per_byte = 0;
};
SerialMachine MakeSerialMachine(const Machine& machine, Mode mode);

// Seconds of one iteration with the given cuts; equals the event simulator up to rounding.
double SerialTime(const PackCosts& costs, const SerialMachine& machine, const Cuts& cuts);

// Costs of a forward phase that ends before each layer, at one microbatch size. [end]: seconds of
// the best cuts, without the stashes, and where their last pack begins.
struct SerialForward {
  std::vector<double> seconds;
  std::vector<int> last_start;
};
SerialForward PlanSerialForward(const PackCosts& costs, const SerialMachine& machine);

// The best backward cuts of the layers before each layer, at one microbatch size. A set of labels
// per end, because a pack's stash is written in the forward phase, before all that follows, while
// the CPU's updates may outlast the GPU: less stash may be better with more GPU time, or the other
// way round. Kept: labels that no other one beats in both.
struct SerialLabel {
  double stash_s = 0;     // in the forward phase
  double backward_s = 0;  // from the top pack's start to the iteration's end
  int start = 0;          // of the top pack
  int below = -1;         // label of the layers before `start`
};
using SerialBackward = std::vector<std::vector<SerialLabel>>;
SerialBackward PlanSerialBackward(const PackCosts& costs, const SerialMachine& machine);

struct SerialPlan {
  Cuts cuts;
  double time_s = 0;  // infinity when nothing fits
};
// `costs` has both microbatch sizes; the parts were planned at u_fwd and at u_bwd.
SerialPlan JoinSerial(const PackCosts& costs, const SerialMachine& machine,
                      const SerialForward& forward, const SerialBackward& backward);

}  // namespace harmony::published
