#pragma once

// The search for a plan of one microbatch size. PURE: effort is counted in work, not in seconds, so
// that the same job gets the same plan everywhere.
//
// Plans are made (all of them where they are few, else from balanced partitions by random changes
// that lower their bound or their estimate), and simulated, the most promising first and then in
// the order of their bounds until the next bound is above the best simulated time. Random changes
// that are judged by simulation follow, as far as simulations are cheap.

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/analytic_costs.h"
#include "coordinator/planner/evaluation.h"
#include "coordinator/planner/moves.h"
#include "coordinator/planner/plan_builder.h"

namespace harmony {

struct SearchOptions {
  // Commands to simulate, and tasks of plans to bound, at most. 0: by the size of the model.
  int64_t commands = 0, tasks = 0;
};

struct ScoredPlan {
  Plan plan;
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
SearchResult SearchPlans(const PlanBuilder& builder, const MoveRules& rules,
                         const std::vector<LayerRange>& partition, const CostFactory& costs,
                         const SearchOptions& options);

}  // namespace harmony
