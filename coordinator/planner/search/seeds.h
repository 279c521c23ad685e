#pragma once

// Plans to start a search from: balanced groups, wrapped around the devices. PURE.

#include <vector>

#include "coordinator/planner/fit/plan_builder.h"
#include "coordinator/planner/search/moves.h"

namespace harmony::planner {

// Of `partition` (group boundaries that are given) or else of balanced partitions into few and many
// groups, with one setting each: two slots, stashes on the host where the rules allow it, updates
// as in a blank plan. Some may not fit.
std::vector<plan::Plan> SeedPlans(const PlanBuilder& builder, TaskCosts& costs,
                                  const MoveRules& rules,
                                  const std::vector<model::LayerRange>& partition);

// The plan with every combination of slots, places of the stashes and updates that the rules leave
// open. Plans of very many groups take so long to look at that their slots stay two.
std::vector<plan::Plan> WithSettings(const plan::Plan& plan, const MoveRules& rules);

}  // namespace harmony::planner
