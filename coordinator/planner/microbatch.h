#pragma once

// `micro_batch_size: auto`. The size is part of what fixes the result of a job, so it must not
// depend on how many devices there happen to be: it is chosen for four devices like the largest
// one of the machine. PURE.

#include <cstdint>
#include <vector>

#include "common/plan/job_spec.h"
#include "common/plan/machine.h"
#include "coordinator/core/analytic_costs.h"
#include "coordinator/planner/plan_builder.h"

namespace harmony {

// Smaller ones would make more microbatches than a step may have.
int64_t LeastMicrobatch(const JobSpec& job);

// Sizes to try, best first; the first for which there is a plan is taken. The job's own size alone
// where it has one. Each leaves whole microbatches to every replica. `informed`: the costs are
// measured or those of paced devices, else nothing is known of small tasks and large ones are
// preferred.
std::vector<int64_t> MicrobatchSizes(const ModelSpec& model, const JobSpec& job,
                                     const MachineSpec& machine, Division division,
                                     const CostFactory& costs, bool informed);

}  // namespace harmony
