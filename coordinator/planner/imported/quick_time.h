#pragma once

// The time of a step of many microbatches, from steps of few. PURE.

#include <cstdint>

#include "absl/status/statusor.h"
#include "coordinator/planner/evaluation.h"

namespace harmony {

// Each further microbatch adds the same once the pipeline is full: the plan is simulated with four
// and with eight forward tasks, and what the second four add is added for each four there are. A
// plan that has no more is simulated as it is. Adds the commands simulated to `commands`.
// ResourceExhausted when the plan cannot run.
absl::StatusOr<Nanos> QuickTime(const ModelSpec& model, const Plan& plan, const CostModel& costs,
                                int64_t* commands);

}  // namespace harmony
