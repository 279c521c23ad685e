#pragma once

// `micro_batch_size: auto`. The size is part of what fixes the result of a job, so it must not
// depend on how many devices there happen to be: it is chosen for four devices like the largest
// one of the machine. PURE.

#include <cstdint>
#include <vector>

#include "common/job/job_spec.h"
#include "common/plan/machine.h"
#include "coordinator/dispatch/costs/analytic_costs.h"
#include "coordinator/planner/fit/plan_builder.h"
#include "coordinator/planner/search/run_both.h"

namespace harmony::planner {

// Smaller ones would make more microbatches than a step may have.
int64_t LeastMicrobatch(const job::JobSpec& job);

// Sizes to try, best first; the first for which there is a plan is taken. The job's own size alone
// where it has one. Each leaves whole microbatches to every replica. `informed`: the costs are
// measured or those of paced devices, else nothing is known of small tasks and large ones are
// preferred.
std::vector<int64_t> MicrobatchSizes(const model::ModelSpec& model, const job::JobSpec& job,
                                     const plan::MachineSpec& machine, Division division,
                                     const dispatch::CostFactory& costs, bool informed,
                                     const RunBoth& run_both);

}  // namespace harmony::planner
