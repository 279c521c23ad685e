#include "coordinator/service/forecast.h"

#include <algorithm>

#include "common/base/status.h"
#include "coordinator/core/visits.h"
#include "coordinator/planner/evaluation.h"

namespace harmony {
namespace {

// For what is moved in a step: which way a tensor takes may change in the first ones.
constexpr int kSteps = 5;

std::vector<Bytes> WorkspacePeaks(const ModelSpec& model, const Plan& plan, int threads) {
  std::vector<Bytes> peaks(plan.devices.size());
  const auto count = [&](VisitKind kind, size_t group) {
    for (int share = 0; share < plan.num_shares(); ++share) {
      const Visit visit = PlannedVisit(model, plan, kind, static_cast<int>(group), share);
      Bytes& peak = peaks[visit.device];
      peak = std::max(peak, WorkspacePeakOf(model, plan, visit, threads));
    }
  };
  for (size_t f = 0; f < plan.forward_groups.size(); ++f) count(VisitKind::kForward, f);
  for (size_t g = 0; g < plan.backward_groups.size(); ++g) count(VisitKind::kBackward, g);
  return peaks;
}

}  // namespace

absl::StatusOr<Forecast> MakeForecast(const ModelSpec& model, const Plan& plan,
                                      const CostModel& costs, int threads) {
  const int steps = StepsToRun(plan);
  HARMONY_ASSIGN_OR_RETURN(Estimate estimate, EvaluatePlan(model, plan, costs, {.steps = steps}));
  Forecast forecast;
  forecast.step_seconds = estimate.step.seconds();  // as `harmony plan` says
  if (steps > 2) {
    HARMONY_ASSIGN_OR_RETURN(estimate, EvaluatePlan(model, plan, costs, {.steps = kSteps}));
  }
  forecast.swap = estimate.bytes;
  forecast.swap[static_cast<size_t>(TrafficClass::kBoundary)] += estimate.peer_bytes;
  forecast.device_peak = estimate.peak_resident;
  const std::vector<Bytes> workspace = WorkspacePeaks(model, plan, threads);
  for (size_t d = 0; d < workspace.size(); ++d) forecast.device_peak[d] += workspace[d];
  return forecast;
}

bool AllPaced(const std::vector<DeviceSpec>& devices) {
  return std::all_of(devices.begin(), devices.end(), [&](const DeviceSpec& device) {
    return HasSpeeds(device) && (device.p2p.value > 0 || devices.size() == 1);
  });
}

}  // namespace harmony
