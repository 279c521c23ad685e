#include "bench/baselines/compare/comparison.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/plan/arena_layout.h"
#include "coordinator/planner/fit/device_need.h"
#include "coordinator/planner/host_memory_error.h"

namespace harmony::baselines {
namespace {

using Json = nlohmann::ordered_json;

std::vector<const Outcome*> RowsOf(const Comparison& comparison) {
  std::vector<const Outcome*> rows = {&comparison.harmony};
  for (const Outcome& other : comparison.others) rows.push_back(&other);
  return rows;
}

double PerSecond(int64_t count, Nanos step) {
  return static_cast<double>(count) / std::max(step.seconds(), 1e-12);
}

// How many times as long a step takes as with Harmony; 0: one of the two does not run.
double AgainstHarmony(const Comparison& comparison, const Outcome& row) {
  if (!row.fits() || !comparison.harmony.fits()) return 0;
  return row.step.seconds() / std::max(comparison.harmony.step.seconds(), 1e-12);
}

Traffic ClassOf(command::TrafficClass traffic) {
  switch (traffic) {
    case command::TrafficClass::kWeights:
      return Traffic::kWeights;
    case command::TrafficClass::kGradients:
      return Traffic::kGradients;
    case command::TrafficClass::kStash:
    case command::TrafficClass::kBoundaryCommit:
    case command::TrafficClass::kBoundary:
    case command::TrafficClass::kRecovery:
      return Traffic::kActivations;
    case command::TrafficClass::kTokens:
    case command::TrafficClass::kLoss:
      return Traffic::kInputs;
  }
  return Traffic::kInputs;
}

std::string TimesText(const Comparison& comparison) {
  const bool tokens = comparison.sequence_length > 1;
  std::string text = absl::StrFormat("%-30s %10s %11s %9s %11s %11s %11s %7s  %s\n", "a step",
                                     "time", tokens ? "tokens/s" : "samples/s", "Harmony",
                                     "over links", "device mem", "host mem", "samples", "busiest");
  const int64_t count = comparison.batch * (tokens ? comparison.sequence_length : 1);
  for (const Outcome* row : RowsOf(comparison)) {
    if (!row->fits()) {
      absl::StrAppendFormat(&text, "%-30s %s: %s\n", row->name,
                            row->obstacle == Obstacle::kBatch ? "does not run" : "does not fit",
                            row->reason);
      continue;
    }
    const double times = AgainstHarmony(comparison, *row);
    const std::string faster = row == &comparison.harmony ? "1"
                               : times > 0                ? absl::StrFormat("x %.2f", times)
                                                          : "-";
    absl::StrAppendFormat(&text, "%-30s %10s %11.4g %9s %11s %11s %11s %7d  %s%s\n", row->name,
                          FormatDuration(row->step), PerSecond(count, row->step), faster,
                          FormatBytes(Bytes(row->host_link_bytes)), FormatBytes(row->device_peak),
                          FormatBytes(row->host_peak), row->microbatch_size, row->binds,
                          row->remark.empty() ? "" : absl::StrCat(" (", row->remark, ")"));
  }
  return text;
}

std::string BytesText(const Comparison& comparison) {
  std::string text =
      absl::StrFormat("%-30s %12s %12s %12s %12s %12s %12s\n", "bytes of a step", "weights",
                      "gradients", "optimizer", "activations", "inputs", "peer links");
  for (const Outcome* row : RowsOf(comparison)) {
    if (!row->fits()) continue;
    absl::StrAppendFormat(&text, "%-30s", row->name);
    for (int64_t bytes : row->bytes)
      absl::StrAppendFormat(&text, " %12s", FormatBytes(Bytes(bytes)));
    absl::StrAppendFormat(&text, " %12s\n", FormatBytes(Bytes(row->peer_bytes)));
  }
  return text;
}

Json RowJson(const Comparison& comparison, const Outcome& row) {
  Json json = {{"name", row.name}, {"fits", row.fits()}};
  if (!row.remark.empty()) json["remark"] = row.remark;
  if (!row.fits()) {
    json["obstacle"] = ToString(row.obstacle);
    json["reason"] = row.reason;
    if (row.missing.count() > 0) json["missing_bytes"] = row.missing.count();
    return json;
  }
  json["step_seconds"] = row.step.seconds();
  json["samples_per_second"] = PerSecond(comparison.batch, row.step);
  json["tokens_per_second"] = PerSecond(comparison.batch * comparison.sequence_length, row.step);
  const double times = AgainstHarmony(comparison, row);
  if (times > 0) json["harmony_speedup"] = times;
  json["micro_batch_size"] = row.microbatch_size;
  json["recompute"] = ToString(row.recompute);
  for (int traffic = 0; traffic < kTrafficClasses; ++traffic) {
    json["bytes"][ToString(static_cast<Traffic>(traffic))] =
        row.bytes[static_cast<size_t>(traffic)];
  }
  json["host_link_bytes"] = row.host_link_bytes;
  json["peer_bytes"] = row.peer_bytes;
  json["peak_device_bytes"] = row.device_peak.count();
  json["peak_host_bytes"] = row.host_peak.count();
  json["busiest"] = row.binds;
  json["busiest_share"] = row.busiest_share;
  return json;
}

}  // namespace

Outcome HarmonyOutcome(const model::ModelSpec& model, const plan::Plan& plan,
                       const planner::Estimate& estimate) {
  Outcome outcome;
  outcome.name = plan::ModeOf(plan);
  if (outcome.name == "mixed") outcome.name = "harmony, mixed";
  outcome.microbatch_size = plan.microbatch_size;
  if (std::any_of(plan.backward_groups.begin(), plan.backward_groups.end(),
                  [](const plan::LayerGroup& group) { return !group.keep_activations; })) {
    outcome.recompute = Recompute::kLayers;
  }
  outcome.step = estimate.step;
  for (size_t traffic = 0; traffic < estimate.bytes.size(); ++traffic) {
    const auto of = static_cast<size_t>(ClassOf(static_cast<command::TrafficClass>(traffic)));
    outcome.bytes[of] += estimate.bytes[traffic];
    outcome.host_link_bytes += estimate.bytes[traffic];
  }
  outcome.peer_bytes = estimate.peer_bytes;
  const std::vector<planner::DeviceNeed> needs =
      planner::NeedOfDevices(plan, planner::NeedOfGroups(model, plan));
  for (size_t d = 0; d < needs.size(); ++d) {
    outcome.device_peak =
        std::max(outcome.device_peak, estimate.peak_resident[d] + needs[d].workspace.workspace);
  }
  outcome.host_peak = plan::ArenaLayout(model, plan).end();
  std::vector<Nanos> busy;
  for (const planner::LaneTotals& lane : estimate.lanes) busy.push_back(lane.busy);
  const Busiest busiest =
      BusiestOf(estimate.resources, busy, static_cast<int>(plan.devices.size()), estimate.step);
  outcome.binds = busiest.text;
  outcome.busiest_share = busiest.share;
  return outcome;
}

Outcome HarmonyWithoutPlan(const absl::Status& why) {
  Outcome outcome;
  outcome.name = "harmony";
  outcome.obstacle =
      planner::IsHostMemoryError(why) ? Obstacle::kHostMemory : Obstacle::kDeviceMemory;
  outcome.reason = std::string(why.message());
  return outcome;
}

std::string ComparisonText(const Comparison& comparison) {
  std::string text = absl::StrFormat(
      "%s on %s: %d samples a step%s\n", comparison.model, comparison.devices, comparison.batch,
      comparison.sequence_length > 1 ? absl::StrFormat(" of %d tokens", comparison.sequence_length)
                                     : "");
  if (!comparison.basis.empty()) absl::StrAppend(&text, "Times: ", comparison.basis, "\n");
  absl::StrAppend(&text, TimesText(comparison), BytesText(comparison));
  return absl::StrCat(text,
                      "All are models under one virtual clock, none was run. \"Harmony\": how many "
                      "times as fast it is. \"samples\":\nof a microbatch. \"over links\": between "
                      "host and devices, all devices together.\n");
}

std::string ComparisonJson(const Comparison& comparison) {
  Json json = {{"model", comparison.model},
               {"devices", comparison.devices},
               {"global_batch_size", comparison.batch},
               {"sequence_length", comparison.sequence_length},
               {"basis", comparison.basis}};
  for (const Outcome* row : RowsOf(comparison)) json["rows"].push_back(RowJson(comparison, *row));
  return json.dump(2);
}

}  // namespace harmony::baselines
