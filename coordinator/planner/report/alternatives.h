#pragma once

// Neighbours of a plan that a user may wonder about, and why they are not taken. PURE.

#include <string>
#include <vector>

#include "coordinator/planner/fit/plan_builder.h"
#include "coordinator/planner/search/moves.h"
#include "coordinator/planner/timing/evaluation.h"

namespace harmony::planner {

struct Alternative {
  std::string what;
  bool fits = true;
  Nanos step;       // when it fits
  std::string why;  // it loses
};

// The same plan with one decision changed, and plain balanced groups; the fastest first. Nothing
// twice, and nothing that is as good as the plan.
std::vector<Alternative> CompareAlternatives(const PlanBuilder& builder, const MoveRules& rules,
                                             const plan::Plan& plan, const Estimate& estimate,
                                             const dispatch::CostModel& costs);

}  // namespace harmony::planner
