#pragma once

// All plans there are, for models and machines so small that one can look at each. PURE.

#include <cstdint>

#include "coordinator/planner/search/moves.h"

namespace harmony::planner {

// A plan with backward groups, forward groups, devices of both, what is kept, slots, size of
// forward tasks and update mode as they are chosen of what the rules leave open; each way in turn,
// all there are. Plans that differ in the names of equal devices only are one. `shape`: see
// PlanBuilder::Blank.
plan::Plan AnyPlan(int layers, const plan::Plan& shape, const MoveRules& rules, Chooser& choose);

// About how many these are; more than `enough` when there are more.
int64_t CountPlans(int layers, const MoveRules& rules, int64_t enough);

}  // namespace harmony::planner
