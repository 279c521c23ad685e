#include "coordinator/planner/report/time_text.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/plan/plan_json.h"
#include "coordinator/planner/report/bottleneck.h"

namespace harmony::planner {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kColumns = 72;
constexpr size_t kMostAlternatives = 8;

std::string SearchText(const PlanResult& result) {
  const SearchReport& report = result.report;
  std::string text = absl::StrFormat("  at least %s whatever the groups: a gap of %.1f%%",
                                     FormatDuration(report.lower_bound), 100 * GapOf(result));
  if (!result.searched) return absl::StrCat(text, "; the plan was given\n");
  absl::StrAppendFormat(&text, "; searched %.2f s: %d plans bounded (%d do not fit), %d simulated",
                        result.search_seconds, report.bounded, report.not_fitting,
                        report.simulations);
  return absl::StrCat(text, report.exhaustive ? ", proved to be the best of all\n" : "\n");
}

double GainOfOneMore(const PlanResult& result) {
  return result.estimate.step.seconds() / result.with_one_more.seconds();
}

void AppendDetail(const PlanResult& result, std::string* text) {
  const Estimate& estimate = result.estimate;
  const int devices = static_cast<int>(result.plan.devices.size());
  const Bottleneck bottleneck = BottleneckOf(estimate, devices);
  absl::StrAppend(text, "  ", bottleneck.verdict, "\n");
  absl::StrAppendFormat(text, "  %-38s %10s %7s %12s %9s\n", "per step", "busy", "of it", "bytes",
                        "rate");
  for (const LaneLoad& lane : bottleneck.lanes) {
    const double seconds = lane.busy.seconds();
    absl::StrAppendFormat(
        text, "  %-38s %10s %6.1f%% %12s %9s\n", lane.name, FormatDuration(lane.busy),
        100 * lane.share, lane.bytes > 0 ? FormatBytes(Bytes(lane.bytes)) : "",
        lane.bytes > 0 && seconds > 0
            ? absl::StrFormat("%.2fGB/s", static_cast<double>(lane.bytes) / seconds * 1e-9)
            : "");
  }
  absl::StrAppend(text, "One step (", TimelineLegend(), ")\n");
  for (const TimelineRow& row : DrawTimeline(estimate, devices, kColumns)) {
    if (row.cells.find_first_not_of('.') == std::string::npos) continue;  // hardly ever busy
    absl::StrAppendFormat(text, "  %-38s |%s|\n", row.lane, row.cells);
  }
  if (result.with_one_more > Nanos()) {
    absl::StrAppendFormat(text,
                          "One more device like device %d: %s a step, %.2f times as fast (%d "
                          "devices for %d: %.2f)\n",
                          devices - 1, FormatDuration(result.with_one_more), GainOfOneMore(result),
                          devices + 1, devices, static_cast<double>(devices + 1) / devices);
  }
  if (!result.alternatives.empty()) absl::StrAppend(text, "Alternatives\n");
  size_t shown = 0;
  for (const Alternative& other : result.alternatives) {
    if (++shown > kMostAlternatives) break;
    const double more = 100 * (other.step.seconds() / estimate.step.seconds() - 1);
    const std::string time =
        other.fits ? absl::StrFormat("%s (%+.1f%%)", FormatDuration(other.step), more) : "-";
    absl::StrAppendFormat(text, "  %-52s %-20s %s\n", other.what, time, other.why);
  }
}

const char* ClassName(size_t traffic) {
  return ToString(static_cast<command::TrafficClass>(traffic));
}

}  // namespace

double TokensPerSecond(const PlanResult& result) {
  return static_cast<double>(result.plan.global_batch() * result.plan.sequence_length) /
         std::max(result.estimate.step.seconds(), 1e-12);
}

double GapOf(const PlanResult& result) {
  return 1 - result.report.lower_bound.seconds() / std::max(result.estimate.step.seconds(), 1e-12);
}

std::string TimeText(const PlanResult& result) {
  std::string text =
      absl::StrFormat("Time, predicted: %s a step, %.1f %s/s\n  from %s\n",
                      FormatDuration(result.estimate.step), TokensPerSecond(result),
                      result.plan.sequence_length == 1 ? "samples" : "tokens", result.basis);
  absl::StrAppend(&text, SearchText(result));
  if (result.estimate.events.empty()) return text;
  AppendDetail(result, &text);
  return text;
}

nlohmann::ordered_json TimeJson(const PlanResult& result) {
  const Estimate& estimate = result.estimate;
  const int devices = static_cast<int>(result.plan.devices.size());
  Json json;
  json["step_seconds"] = estimate.step.seconds();
  json["tokens_per_second"] = TokensPerSecond(result);
  json["basis"] = result.basis;
  json["lower_bound_seconds"] = result.report.lower_bound.seconds();
  json["gap"] = GapOf(result);
  if (result.searched) {
    json["search"] = {
        {"seconds", result.search_seconds},         {"bounded", result.report.bounded},
        {"not_fitting", result.report.not_fitting}, {"simulations", result.report.simulations},
        {"commands", result.report.commands},       {"exhaustive", result.report.exhaustive}};
  }
  for (size_t i = 0; i < estimate.bytes.size(); ++i) {
    json["swap_bytes"][ClassName(i)] = estimate.bytes[i];
  }
  json["peer_bytes"] = estimate.peer_bytes;
  if (estimate.events.empty()) return json;
  const Bottleneck bottleneck = BottleneckOf(estimate, devices);
  json["verdict"] = bottleneck.verdict;
  for (const LaneLoad& lane : bottleneck.lanes) {
    json["lanes"].push_back({{"name", lane.name},
                             {"busy_seconds", lane.busy.seconds()},
                             {"share", lane.share},
                             {"bytes", lane.bytes},
                             {"on_the_chain_seconds", lane.on_the_chain.seconds()}});
  }
  for (const TimelineRow& row : DrawTimeline(estimate, devices, kColumns)) {
    json["timeline"].push_back({{"lane", row.lane}, {"cells", row.cells}});
  }
  if (result.with_one_more > Nanos()) {
    json["one_more_device"] = {{"step_seconds", result.with_one_more.seconds()},
                               {"times_as_fast", GainOfOneMore(result)}};
  }
  json["alternatives"] = Json::array();
  for (const Alternative& other : result.alternatives) {
    json["alternatives"].push_back(
        {{"what", other.what},
         {"fits", other.fits},
         {"step_seconds", other.fits ? Json(other.step.seconds()) : Json()},
         {"why", other.why}});
  }
  return json;
}

}  // namespace harmony::planner
