#include "coordinator/service/replan/forecast.h"

#include <algorithm>

#include "common/base/status.h"
#include "coordinator/dispatch/graph/group_executions.h"
#include "coordinator/planner/timing/evaluation.h"

namespace harmony::service {
namespace {

// For what is moved in a step: which way a tensor takes may change in the first ones.
constexpr int kSteps = 5;

std::vector<Bytes> WorkspacePeaks(const model::ModelSpec& model, const plan::Plan& plan,
                                  int threads) {
  std::vector<Bytes> peaks(plan.devices.size());
  const auto count = [&](dispatch::ExecutionKind kind, size_t group) {
    const plan::LayerGroup& of = kind == dispatch::ExecutionKind::kForward
                                     ? plan.forward_groups[group]
                                     : plan.backward_groups[group];
    for (int shard = 0; shard < of.devices.num_shards(); ++shard) {
      const dispatch::GroupExecution execution =
          dispatch::PlannedExecution(model, plan, kind, static_cast<int>(group), shard);
      Bytes& peak = peaks[execution.device];
      peak = std::max(peak, dispatch::WorkspacePeakOf(model, plan, execution, threads));
    }
  };
  for (size_t f = 0; f < plan.forward_groups.size(); ++f)
    count(dispatch::ExecutionKind::kForward, f);
  for (size_t g = 0; g < plan.backward_groups.size(); ++g)
    count(dispatch::ExecutionKind::kBackward, g);
  return peaks;
}

}  // namespace

absl::StatusOr<Forecast> MakeForecast(const model::ModelSpec& model, const plan::Plan& plan,
                                      const dispatch::CostModel& costs, int threads) {
  const int steps = planner::StepsToRun(plan);
  HARMONY_ASSIGN_OR_RETURN(planner::Estimate estimate,
                           planner::EvaluatePlan(model, plan, costs, {.steps = steps}));
  Forecast forecast;
  forecast.step_seconds = estimate.step.seconds();  // as `harmony plan` says
  if (steps > 2) {
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

bool AllPaced(const std::vector<plan::DeviceSpec>& devices) {
  return std::all_of(devices.begin(), devices.end(), [&](const plan::DeviceSpec& device) {
    return plan::HasSpeeds(device) && (device.p2p.value > 0 || devices.size() == 1);
  });
}

}  // namespace harmony::service
