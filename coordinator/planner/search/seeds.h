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

// What another search has found, as a plan of this one (`shape`: its blank plan); then with all
// groups, or those at the ends of a step, on other sets of devices: where a pipeline fills and
// drains, and where the last update is waited for, which takes the longer the more gradients it
// adds up.
std::vector<plan::Plan> PlansLike(const plan::Plan& found, const plan::Plan& shape,
                                  const MoveRules& rules);

// The plan with every combination of slots, places of the stashes and updates that the rules leave
// open. Plans of very many groups take so long to look at that their slots stay two.
std::vector<plan::Plan> WithSettings(const plan::Plan& plan, const MoveRules& rules);

}  // namespace harmony::planner
