#pragma once

// All small changes of a plan, one after the other: for plans of few groups. PURE.

#include "absl/functional/function_ref.h"
#include "coordinator/planner/search/moves.h"

namespace harmony::planner {

// Calls `take` with the plan after each change that the rules allow: a boundary elsewhere, a group
// more or less, other devices, something kept or not, another setting. As with RandomMove, what
// follows from the groups is not up to date. The same plan may come several times.
void ForEachNeighbour(const MoveRules& rules, const plan::Plan& plan,
                      absl::FunctionRef<void(plan::Plan)> take);

}  // namespace harmony::planner
