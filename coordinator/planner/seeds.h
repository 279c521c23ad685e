#pragma once

// Plans to start a search from: balanced groups, wrapped around the devices. PURE.

#include <vector>

#include "coordinator/planner/moves.h"
#include "coordinator/planner/plan_builder.h"

namespace harmony {

// Of `partition` (group boundaries that are given) or else of balanced partitions into few and many
// groups; some may not fit.
std::vector<Plan> SeedPlans(const PlanBuilder& builder, TaskCosts& costs, const MoveRules& rules,
                            const std::vector<LayerRange>& partition);

}  // namespace harmony
