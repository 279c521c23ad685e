#pragma once

// The search for a plan of one microbatch size. PURE: effort is counted in work, not in seconds, so
// that the same job gets the same plan everywhere.
//
// Plans are judged by two things only: a lower bound (bounds.h), which is quick, and a dry run of
// the dispatcher (evaluation.h), which has the last word. Where plans are few, all of them are
// bounded, and run dry in the order of their bounds until none that is left can win. Else balanced
// partitions are changed at random (annealing) by their bounds, the best are run dry, then changed
// by dry runs, and at last every small change of the best is looked at. A search may begin with
// plans that others have found: where few dry runs can be paid for, it goes on from them alone.

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/dispatch/costs/analytic_costs.h"
#include "coordinator/planner/fit/plan_builder.h"
#include "coordinator/planner/search/moves.h"
#include "coordinator/planner/timing/evaluation.h"

namespace harmony::planner {

struct SearchOptions {
  // Tasks of plans to bound, or what takes as long. 0: by the size of the model and of the run.
  int64_t work = 0;
  double share = 1;  // of it
};

struct ScoredPlan {
  plan::Plan plan;
  PlanBound bound;
  Nanos step;   // simulated
  Nanos score;  // PlanBuilder::Score of it
  bool fits_host = true;
};

// Plans whose times differ by less than this are equally fast: the one with the smaller arena wins.
inline constexpr double kEquallyFast = 1e-4;

struct SearchReport {
  int64_t bounded = 0;      // plans looked at
  int64_t not_fitting = 0;  // ... and put aside for memory
  int64_t simulations = 0, commands = 0;
  // Every plan of the space was looked at, and none that was not simulated can be better.
  bool exhaustive = false;
  Nanos lower_bound;                  // of all plans of this microbatch size, whatever their groups
  std::vector<ScoredPlan> simulated;  // the best first, the chosen one included; not all
};

struct SearchResult {
  bool found = false;  // a plan fits the devices
  ScoredPlan best;
  SearchReport report;
};

// `partition`: group boundaries that are given (then group g runs on device g mod N), or empty.
// `starts`: plans that other searches have found, of the same microbatches and devices.
SearchResult SearchPlans(const PlanBuilder& builder, const MoveRules& rules,
                         const std::vector<model::LayerRange>& partition,
                         const dispatch::CostFactory& costs, const SearchOptions& options,
                         const std::vector<plan::Plan>& starts = {});

}  // namespace harmony::planner
