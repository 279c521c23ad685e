#pragma once

// From what a run's commands have taken to how its cost model is off.

#include "common/plan/lane_resources.h"
#include "common/plan/plan.h"
#include "coordinator/dispatch/costs/scaled_costs.h"
#include "coordinator/service/run/lane_monitor.h"

namespace harmony::service {

// Of the commands of steps [first_step, end_step): the time that each kind took over the time
// modelled for it. Copies over one link take turns, as in an evaluation of the plan: a copy's time
// counts from the end of the one before, whichever lane that was on. While more ran than
// `cores` carry at once, each command on them counts for its part. A device that did nothing of a
// kind gets what its fellows have in the middle.
dispatch::CostScales ScalesOf(const LaneMonitor& monitor, const plan::Plan& plan,
                              const plan::CoreSharing& cores, int64_t first_step, int64_t end_step);

}  // namespace harmony::service
