#pragma once

// The search of a plan in all that a job leaves open: modes, microbatch sizes, replicas. PURE.

#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/search/move_rules.h"

namespace harmony::planner {

// The sizes of microbatches that a search tries: the first one, unless nothing fits by it, and so
// on. Where they are open (micro_batch_size: auto) each is bounded, which takes a while.
std::vector<int64_t> MicrobatchesToTry(const model::ModelSpec& model, const job::JobSpec& job,
                                       const plan::MachineSpec& machine,
                                       const dispatch::CostFactory& costs,
                                       const PlannerOptions& options);

// As MakePlan, for a job that was checked and without a plan that is given; by these times, of
// these sizes of microbatches.
absl::StatusOr<PlanResult> SearchedPlan(const model::ModelSpec& model, const job::JobSpec& job,
                                        const plan::MachineSpec& machine,
                                        const dispatch::CostFactory& costs,
                                        const PlannerOptions& options,
                                        const std::vector<int64_t>& microbatches);

// Fills in all that is to be said of the result's plan.
absl::Status Evaluate(const PlanBuilder& builder, const MoveRules& rules,
                      const dispatch::CostFactory& costs, const PlannerOptions& options,
                      PlanResult* result);

}  // namespace harmony::planner
