#pragma once

// Plans to start a search from: balanced groups, wrapped around the devices. PURE.

#include <vector>

#include "coordinator/planner/fit/plan_builder.h"
#include "coordinator/planner/search/moves.h"
#include "coordinator/planner/search/search.h"

namespace harmony::planner {

// Of `partition` (group boundaries that are given) or else of balanced partitions into few and many
// groups, with one setting each: two slots, stashes on the host where the rules allow it, updates
// as in a blank plan. Some may not fit.
std::vector<plan::Plan> SeedPlans(const PlanBuilder& builder, TaskCosts& costs,
                                  const MoveRules& rules,
                                  const std::vector<model::LayerRange>& partition);

// What another search may go on with, the best first.
std::vector<plan::Plan> BestPlans(const SearchResult& found);

// What another search has found, as a plan of this one (`shape`: its blank plan).
plan::Plan WithGroupsOf(const plan::Plan& found, const plan::Plan& shape);

// That with all groups, or some at one end of a step or at both, on other sets of devices: where a
// pipeline fills and drains, and where the last update is waited for, which takes the longer the
// more gradients it adds up. Of devices that are alike the first set of each size.
std::vector<plan::Plan> PlansLike(const plan::Plan& found, const plan::Plan& shape,
                                  const MoveRules& rules);

// The plan with every combination of slots, places of the stashes and updates that the rules leave
// open. Plans of very many groups take so long to look at that their slots stay two.
std::vector<plan::Plan> WithSettings(const plan::Plan& plan, const MoveRules& rules);

}  // namespace harmony::planner
