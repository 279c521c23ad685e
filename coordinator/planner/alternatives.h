#pragma once

// Neighbours of a plan that a user may wonder about, and why they are not taken. PURE.

#include <string>
#include <vector>

#include "coordinator/planner/evaluation.h"
#include "coordinator/planner/moves.h"
#include "coordinator/planner/plan_builder.h"

namespace harmony {

struct Alternative {
  std::string what;
  bool fits = true;
  Nanos step;       // when it fits
  std::string why;  // it loses
};

// The same plan with one decision changed, and plain balanced groups; the fastest first. Nothing
// twice, and nothing that is as good as the plan.
std::vector<Alternative> CompareAlternatives(const PlanBuilder& builder, const MoveRules& rules,
                                             const Plan& plan, const Estimate& estimate,
                                             const CostModel& costs);

}  // namespace harmony
