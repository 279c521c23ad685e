#pragma once

// What a job and its machine leave to the search. PURE.

#include "coordinator/planner/fit/plan_builder.h"
#include "coordinator/planner/search/moves.h"

namespace harmony::planner {

MoveRules RulesOf(const PlanBuilder& builder);

}  // namespace harmony::planner
