#include "coordinator/service/run/metrics_line.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/model/model_sizes.h"
#include "coordinator/service/run/job_run.h"

namespace harmony::service {
namespace {

using nlohmann::ordered_json;

// By device; what a GPU does not tell is left out.
ordered_json GpusJson(const std::vector<v1::GpuReadings>& gpus) {
  ordered_json json = ordered_json::array();
  for (const v1::GpuReadings& gpu : gpus) {
    ordered_json& one = json.emplace_back(ordered_json::object());
    if (gpu.has_temperature_celsius()) one["temperature_celsius"] = gpu.temperature_celsius();
    if (gpu.has_sm_clock_mhz()) one["sm_clock_mhz"] = gpu.sm_clock_mhz();
    if (gpu.has_memory_clock_mhz()) one["memory_clock_mhz"] = gpu.memory_clock_mhz();
    if (gpu.has_memory_used_bytes()) one["memory_used_bytes"] = gpu.memory_used_bytes();
    if (gpu.has_memory_bytes()) one["memory_bytes"] = gpu.memory_bytes();
    if (gpu.has_pcie_in_bytes_per_second()) {
      one["pcie_in_bytes_per_second"] = gpu.pcie_in_bytes_per_second();
    }
    if (gpu.has_pcie_out_bytes_per_second()) {
      one["pcie_out_bytes_per_second"] = gpu.pcie_out_bytes_per_second();
    }
  }
  return json;
}

// A run with a larger share of paced tasks that overran is not what the model says.
constexpr double kMaxOverrunShare = 0.01;

ordered_json SwapJson(const SwapTotals& totals) {
  ordered_json json = ordered_json::object();
  for (int i = 0; i < kNumTrafficClasses; ++i) {
    json[ToString(static_cast<command::TrafficClass>(i))] = totals[i];
  }
  return json;
}

std::vector<std::pair<command::TrafficClass, Bytes>> Minima(const plan::MinimalSwap& minimal) {
  return {{command::TrafficClass::kWeights, minimal.weights},
          {command::TrafficClass::kGradients, minimal.gradients},
          {command::TrafficClass::kStash, minimal.stash},
          {command::TrafficClass::kBoundaryCommit, minimal.boundary_commit},
          {command::TrafficClass::kTokens, minimal.tokens}};
}

LaneUsage ComputeUsage(const JobRun& run, int device) {
  const LaneMonitor& monitor = run.monitor();
  return monitor.Usage(monitor.table().IndexOf({command::LaneKind::kCompute, device}), Nanos());
}

// Paced figures are always labelled as such.
void AddPacing(const JobRun& run, ordered_json* json, std::string* text) {
  const Pacing pacing = run.pacing();
  (*json)["paced"] = pacing.paced;
  (*json)["paced_overruns"] = pacing.overruns;
  if (pacing.paced == 0) return;
  const double share = static_cast<double>(pacing.overruns) / static_cast<double>(pacing.paced);
  (*json)["as_modelled"] = share <= kMaxOverrunShare;
  absl::StrAppendFormat(text, "paced devices: %.2f%% of %d tasks and transfers overran%s\n",
                        100 * share, pacing.paced,
                        share > kMaxOverrunShare ? ": NOT AS MODELLED" : "");
}

void AddForecast(const JobRun& run, ordered_json* json, std::string* text) {
  if (!run.steps().forecast()) return;
  const Forecast& forecast = *run.steps().forecast();
  ordered_json peaks = ordered_json::array();
  for (Bytes peak : forecast.device_peak) peaks.push_back(peak.count());
  (*json)["predicted"] = {{"seconds_per_step", forecast.step_seconds},
                          {"swap_bytes_per_step", SwapJson(forecast.swap)},
                          {"peak_device_bytes", std::move(peaks)},
                          {"host_bytes", forecast.host.count()}};
  const double median = run.steps().MedianSecondsPerStep();
  if (median <= 0) return;
  absl::StrAppendFormat(text, "step: %.4g s in the median, %.4g s predicted (%+.1f%%)\n", median,
                        forecast.step_seconds, 100 * (median / forecast.step_seconds - 1));
}

}  // namespace

std::string MetricsLine(const StepMetrics& metrics, const std::vector<int64_t>& peak_bytes,
                        uint32_t generation) {
  ordered_json json;
  json["step"] = metrics.step;
  json["loss"] = metrics.loss;
  json["grad_norm"] = metrics.grad_norm ? ordered_json(*metrics.grad_norm) : ordered_json();
  json["learning_rate"] = metrics.learning_rate;
  json["tokens_per_second"] = metrics.tokens_per_second;
  json["seconds"] = metrics.seconds;
  if (metrics.predicted_seconds) json["predicted_seconds"] = *metrics.predicted_seconds;
  if (metrics.suggestion) {
    json["replan"] = {{"predicted_seconds", metrics.suggestion->seconds},
                      {"instead_of", metrics.suggestion->instead_of}};
  }
  json["swap_bytes"] = SwapJson(metrics.swap);
  json["peak_device_bytes"] = peak_bytes;
  if (!metrics.gpus.empty()) json["gpus"] = GpusJson(metrics.gpus);
  json["generation"] = generation;
  return json.dump();
}

RunSummary SummarizeRun(const JobRun& run, double seconds) {
  const RunSetup& setup = run.setup();
  const int64_t steps = run.steps().steps_seen();
  const int64_t earlier = run.completed_steps() - setup.start.first_step - steps;
  const double tokens = static_cast<double>(steps) *
                        static_cast<double>(setup.plan.global_batch() * setup.plan.sequence_length);
  const double rate = seconds > 0 ? tokens / seconds : 0;
  ordered_json json;
  json["precision"] = model::PrecisionName(setup.model);
  json["steps"] = steps;
  json["seconds"] = seconds;
  json["tokens_per_second"] = rate;
  RunSummary summary;
  const double median = run.steps().MedianSecondsPerStep();
  const double median_rate =
      median > 0
          ? static_cast<double>(setup.plan.global_batch() * setup.plan.sequence_length) / median
          : 0;
  json["tokens_per_second_median_step"] = median_rate;
  json["seconds_median_step"] = median;
  summary.text = absl::StrFormat(
      "%d steps%s in %s with start and checkpoints, %.1f %s/s; %.1f in the median step\n", steps,
      earlier > 0 ? absl::StrCat(" (since the restart or change of plan, ", earlier, " before)")
                  : "",
      FormatDuration(Nanos::FromSeconds(seconds)), rate,
      setup.plan.sequence_length == 1 ? "samples" : "tokens", median_rate);
  if (run.steps().last_step()) {
    json["last_loss"] = run.steps().last_step()->loss;
    absl::StrAppendFormat(&summary.text, "loss of step %d: %.6f\n", run.steps().last_step()->step,
                          run.steps().last_step()->loss);
  }
  json["swap_bytes"] = SwapJson(run.monitor().total());
  json["swap_minimum_per_step"] = ordered_json::object();
  for (const auto& [traffic, minimum] : Minima(run.minimal_swap())) {
    const double moved = static_cast<double>(run.monitor().total()[static_cast<int>(traffic)]);
    json["swap_minimum_per_step"][ToString(traffic)] = minimum.count();
    if (minimum.count() == 0 || steps == 0) continue;
    absl::StrAppendFormat(&summary.text, "swap %-16s %12s a step, minimum %12s, ratio %.2f\n",
                          ToString(traffic),
                          FormatBytes(Bytes(static_cast<int64_t>(moved / steps))),
                          FormatBytes(minimum), moved / steps / minimum.count());
  }
  json["devices"] = ordered_json::array();
  for (size_t d = 0; d < setup.plan.devices.size(); ++d) {
    const Bytes peak = run.PeakBytes(static_cast<int>(d)), cap = setup.plan.devices[d].memory;
    const LaneUsage usage = ComputeUsage(run, static_cast<int>(d));
    const double busy = seconds > 0 ? usage.busy.seconds() / seconds : 0;
    const double starved = seconds > 0 ? usage.starved.seconds() / seconds : 0;
    json["devices"].push_back({{"peak_bytes", peak.count()},
                               {"cap_bytes", cap.count()},
                               {"computing_share", busy},
                               {"waiting_for_commands_share", starved}});
    absl::StrAppendFormat(&summary.text,
                          "device %d: peak memory %s of %s; computing %.1f%%, waiting for commands "
                          "%.2f%% of the time\n",
                          d, FormatBytes(peak), FormatBytes(cap), 100 * busy, 100 * starved);
  }
  if (setup.replan.changes > 0) {
    json["replanned_after_step"] = setup.replan.changed_at;
    absl::StrAppendFormat(&summary.text, "by the plan that was found after step %d\n",
                          setup.replan.changed_at);
  }
  AddForecast(run, &json, &summary.text);
  AddPacing(run, &json, &summary.text);
  summary.json = json.dump(1) + "\n";
  return summary;
}

}  // namespace harmony::service
