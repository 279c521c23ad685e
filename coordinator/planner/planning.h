#pragma once

// The search of a plan in all that a job leaves open: modes, microbatch sizes, replicas. PURE.

#include "absl/status/statusor.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/search/move_rules.h"

namespace harmony::planner {

// As MakePlan, for a job that was checked and without a plan that is given; by these times.
absl::StatusOr<PlanResult> SearchedPlan(const model::ModelSpec& model, const job::JobSpec& job,
                                        const plan::MachineSpec& machine,
                                        const dispatch::CostFactory& costs,
                                        const PlannerOptions& options);

// The size of microbatches that is tried first, and is taken unless nothing fits by it.
int64_t LikelyMicrobatch(const model::ModelSpec& model, const job::JobSpec& job,
                         const plan::MachineSpec& machine, const dispatch::CostFactory& costs,
                         const PlannerOptions& options);

// Fills in all that is to be said of the result's plan.
absl::Status Evaluate(const PlanBuilder& builder, const MoveRules& rules,
                      const dispatch::CostFactory& costs, const PlannerOptions& options,
                      PlanResult* result);

}  // namespace harmony::planner
