#include "coordinator/service/forecast.h"

#include <algorithm>

#include "coordinator/core/visits.h"
#include "coordinator/sim/simulation.h"

namespace harmony {
namespace {

// The first steps fill the pipeline and the last one has no successor to prefetch for.
constexpr int kSteps = 8, kRunUp = 3;

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
  SimOptions options;
  options.end_step = kSteps;
  options.keep_timeline = true;
  const SimResult result = Simulate(model, plan, costs, options);
  if (!result.status.ok()) return result.status;
  Forecast forecast;
  const Nanos steady = result.step_ends[kSteps - 2] - result.step_ends[kRunUp - 1];
  forecast.step_seconds = steady.seconds() / (kSteps - 1 - kRunUp);
  for (const TimelineEntry& entry : result.timeline) {
    const auto* transfer = std::get_if<Transfer>(&entry.command.body);
    if (transfer == nullptr || entry.command.header.step != kRunUp) continue;
    forecast.swap[static_cast<size_t>(transfer->traffic)] += transfer->size.count();
  }
  forecast.device_peak = result.peak_resident;
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
