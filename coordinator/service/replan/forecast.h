#pragma once

// What a plan says its run will look like; the run is held against it.

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/machine.h"
#include "common/plan/plan.h"
#include "coordinator/dispatch/issue/dispatcher.h"
#include "coordinator/service/run/lane_monitor.h"

namespace harmony::service {

struct Forecast {
  double step_seconds = 0;         // of a step in the middle of the run
  SwapTotals swap = {};            // bytes of such a step
  std::vector<Bytes> device_peak;  // bindings and workspace
  Bytes host;                      // of the shared segment
};

// From the planner's evaluation, so the same as a plan says; all but `host`. `threads`: of a
// worker's computing. ResourceExhausted when the plan does not run.
absl::StatusOr<Forecast> MakeForecast(const model::ModelSpec& model, const plan::Plan& plan,
                                      const dispatch::CostModel& costs, int threads);

}  // namespace harmony::service
