#pragma once

// All plans there are, for models and machines so small that one can look at each. PURE.

#include <cstdint>
#include <functional>

#include "coordinator/planner/search/moves.h"

namespace harmony::planner {

// Calls `take` with every combination of backward groups, forward groups, devices of both, what is
// kept, slots, sizes of forward tasks and update mode that the rules leave open; plans that differ
// in the names of equal devices only are one. `shape`: see PlanBuilder::Blank.
void EnumeratePlans(int layers, const plan::Plan& shape, const MoveRules& rules,
                    const std::function<void(const plan::Plan&)>& take);

// About how many these are; more than `enough` when there are more.
int64_t CountPlans(int layers, const MoveRules& rules, int64_t enough);

}  // namespace harmony::planner
