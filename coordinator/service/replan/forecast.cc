#include "coordinator/service/replan/forecast.h"

#include <algorithm>

#include "common/base/status.h"
#include "coordinator/dispatch/graph/group_executions.h"
#include "coordinator/planner/timing/bounds.h"
#include "coordinator/planner/timing/evaluation.h"

namespace harmony::service {
namespace {

// For what is moved in a step: which way a tensor takes may change in the first ones.
constexpr int kSteps = 5;

std::vector<Bytes> WorkspacePeaks(const model::ModelSpec& model, const plan::Plan& plan,
                                  int threads) {
  std::vector<Bytes> peaks(plan.devices.size());
  for (const dispatch::GroupExecution& execution : planner::ExecutionsOf(model, plan).executions) {
    Bytes& peak = peaks[execution.device];
    peak = std::max(peak, dispatch::WorkspacePeakOf(model, plan, execution, threads));
  }
  return peaks;
}

}  // namespace

absl::StatusOr<Forecast> MakeForecast(const model::ModelSpec& model, const plan::Plan& plan,
                                      const dispatch::CostModel& costs, int threads) {
  HARMONY_ASSIGN_OR_RETURN(planner::Estimate estimate, planner::EvaluatePlan(model, plan, costs));
  Forecast forecast;
  forecast.step_seconds = estimate.step.seconds();  // as `harmony plan` says
  if (planner::StepsToRun(plan) > 2) {
    HARMONY_ASSIGN_OR_RETURN(estimate,
                             planner::EvaluatePlan(model, plan, costs, {.steps = kSteps}));
  }
  forecast.swap = estimate.bytes;
  forecast.swap[static_cast<size_t>(command::TrafficClass::kBoundary)] += estimate.peer_bytes;
  forecast.device_peak = estimate.peak_resident;
  const std::vector<Bytes> workspace = WorkspacePeaks(model, plan, threads);
  for (size_t d = 0; d < workspace.size(); ++d) forecast.device_peak[d] += workspace[d];
  return forecast;
}

}  // namespace harmony::service
