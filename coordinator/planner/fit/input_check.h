#pragma once

// What no plan can be made of, said before one is looked for. PURE.

#include <cstdint>

#include "absl/status/status.h"
#include "common/job/job_spec.h"
#include "common/model/model_spec.h"
#include "common/plan/machine.h"
#include "coordinator/dispatch/costs/analytic_costs.h"

namespace harmony::planner {

// A step must not take longer than times can count: all that it does, one after the other, each
// layer a group of its own. `microbatch`: samples of one.
absl::Status CheckTimes(const model::ModelSpec& model, const job::JobSpec& job,
                        const plan::MachineSpec& machine, const dispatch::CostFactory& costs,
                        int64_t microbatch);

}  // namespace harmony::planner
