#pragma once

// A profile of the published planner in the hands of our ordinary planner (MakePlan), which knows
// nothing of such profiles. PURE.

#include <cstdint>

#include "absl/status/statusor.h"
#include "bench/published_planner/ours/imported_model.h"
#include "coordinator/planner/planner.h"

namespace harmony::published {

// A plan of a step on the machine's GPUs, with the microbatch size that `micro_batch_size: auto`
// chooses. Data parallel: a GPU each runs the same plan on its share of the samples and of the host
// link, and the gradients are added up in no time (as JudgeSchedule has it): the result is the plan
// of one GPU. Depends on its arguments only. ResourceExhausted: nothing fits.
absl::StatusOr<planner::PlanResult> PlanProfile(const LayerProfile& profile, const Machine& machine,
                                                Mode mode, int64_t minibatch);

}  // namespace harmony::published
