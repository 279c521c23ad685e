#include "coordinator/service/replan/replan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/document/json_fields.h"
#include "coordinator/dispatch/costs/profiled_costs.h"
#include "coordinator/planner/planner.h"

namespace harmony::service {
namespace {

// A change of plans: what it takes at least, and the pace of a checkpoint's bytes, both ways.
constexpr double kChangeSeconds = 1, kCheckpointBytesPerSecond = 500e6;
constexpr double kCheckpointBytesPerParameter = 12;  // fp32, and two moments
// By then 50 million steps lie between two searches. Many more would overflow.
constexpr int kMostDoublings = 20;

absl::Status Search(const ReplanRequest& request, ReplanAnswer* answer) {
  planner::PlannerOptions options;
  options.microbatch_size = request.plan.microbatch_size;
  options.replicas = request.plan.replicas;
  options.costs = dispatch::ScaledCostFactory(
      request.profile != nullptr
          ? dispatch::ProfiledCostFactory(request.profile, request.model)
          : dispatch::AnalyticCostFactory(request.model, request.machine.devices),
      request.scales);
  const int threads = request.spec.compute_threads;
  HARMONY_ASSIGN_OR_RETURN(answer->now, MakeForecast(request.model, request.plan,
                                                     *options.costs(request.plan), threads));
  HARMONY_ASSIGN_OR_RETURN(planner::PlanResult found, planner::MakePlan(request.model, request.spec,
                                                                        request.machine, options));
  HARMONY_ASSIGN_OR_RETURN(Forecast forecast, MakeForecast(request.model, found.plan,
                                                           *options.costs(found.plan), threads));
  if (forecast.step_seconds > answer->now->step_seconds * (1 - kWorthAWord)) {
    return absl::OkStatus();
  }
  HARMONY_RETURN_IF_ERROR(CheckHost(request.model, found.plan, request.machine, request.limits));
  answer->plan_text = planner::ExplainPlan(request.model, found, request.machine);
  answer->plan = std::move(found.plan);
  answer->then = std::move(forecast);
  return absl::OkStatus();
}

nlohmann::json ToJson(const dispatch::CostScales& scales) {
  nlohmann::json json{{"updates", scales.updates}, {"data", scales.data}};
  json["devices"] = nlohmann::json::array();
  for (const dispatch::CostScales::Device& device : scales.devices) {
    json["devices"].push_back({{"forward", device.forward},
                               {"backward", device.backward},
                               {"h2d", device.h2d},
                               {"d2h", device.d2h},
                               {"p2p", device.p2p}});
  }
  return json;
}

}  // namespace

std::string ReplanStateToText(const ReplanState& state) {
  return nlohmann::json{{"step", state.step},
                        {"changes", state.changes},
                        {"changed_at", state.changed_at},
                        {"seconds_before", state.seconds_before},
                        {"in_vain", state.in_vain},
                        {"calibration", ToJson(state.scales)}}
      .dump();
}

absl::StatusOr<ReplanState> ReplanStateFromText(absl::string_view text, absl::string_view where) {
  ReplanState state;
  if (text.empty()) return state;
  const absl::Status read = document::ReadJson(text, where, [&](const document::JsonField& root) {
    root.Only({"step", "changes", "changed_at", "seconds_before", "in_vain", "calibration"});
    state.step = root.Get("step").Integer(-1);
    state.changes = root.Get("changes").Int(0);
    state.changed_at = root.Get("changed_at").Integer(-1);
    state.seconds_before = root.Get("seconds_before").Number();
    state.in_vain = root.Get("in_vain").Flag();
    // Stored jobs have the word for what the scales are called by now.
    const document::JsonField scales = root.Get("calibration");
    scales.Only({"updates", "data", "devices"});
    state.scales.updates = scales.Get("updates").Number();
    state.scales.data = scales.Get("data").Number();
    for (const document::JsonField& device : scales.Get("devices").Items()) {
      device.Only({"forward", "backward", "h2d", "d2h", "p2p"});
      const auto of = [&](const char* name) { return device.Get(name).Number(); };
      state.scales.devices.push_back(
          {of("forward"), of("backward"), of("h2d"), of("d2h"), of("p2p")});
    }
  });
  if (!read.ok()) return absl::InternalError(read.message());
  return state;
}

int64_t NextSearch(const ReplanState& state) {
  if (state.step < 0) return 0;
  const int64_t wait = kStepsBetweenSearches << std::min(state.changes, kMostDoublings);
  return state.step + wait * (state.in_vain ? kPatienceAfterNothing : 1);
}

void CountChange(int64_t step, double seconds_before, ReplanState* state) {
  state->step = state->changed_at = step;
  state->seconds_before = seconds_before;
  state->in_vain = false;
  ++state->changes;
}

std::string JudgeChange(double seconds, ReplanState* state) {
  const double before = std::exchange(state->seconds_before, 0);
  state->in_vain = seconds > before * (1 - kWorthTheChange);
  const std::string figures =
      absl::StrFormat("%.3g s in the median of %d, %.3g s before (%+.0f%%)", seconds, kStepsToJudge,
                      before, 100 * (seconds / before - 1));
  if (!state->in_vain) return "steps are shorter since the change: " + figures;
  return absl::StrCat("the change made steps no shorter: ", figures,
                      "; nothing is searched before step ", NextSearch(*state));
}

ReplanAnswer SearchAgain(const ReplanRequest& request) {
  ReplanAnswer answer;
  answer.measured_seconds = request.measured_seconds;
  answer.status = Search(request, &answer);
  return answer;
}

bool PaysOff(const model::ModelSpec& model, const ReplanAnswer& answer, int64_t steps_left) {
  const double bytes = static_cast<double>(model.parameter_count()) * kCheckpointBytesPerParameter;
  const double saved = answer.now->step_seconds - answer.then->step_seconds;
  return saved * static_cast<double>(steps_left) >
         kChangeSeconds + 2 * bytes / kCheckpointBytesPerSecond;
}

std::string DescribeScales(const dispatch::CostScales& scales) {
  const auto range = [&](double dispatch::CostScales::Device::*what) {
    const auto less = [what](const auto& a, const auto& b) { return a.*what < b.*what; };
    const auto [least, most] =
        std::minmax_element(scales.devices.begin(), scales.devices.end(), less);
    if (least == scales.devices.end()) return std::string("1");
    const std::string from = absl::StrFormat("%.2f", (*least).*what);
    const std::string to = absl::StrFormat("%.2f", (*most).*what);
    return from == to ? from : absl::StrCat(from, " to ", to);
  };
  using Device = dispatch::CostScales::Device;
  return absl::StrCat("forward tasks took ", range(&Device::forward),
                      " of the time modelled, backward ", range(&Device::backward), ", copies in ",
                      range(&Device::h2d), ", out ", range(&Device::d2h), ", between devices ",
                      range(&Device::p2p), ", updates ", absl::StrFormat("%.2f", scales.updates));
}

std::string OutlineOf(const plan::Plan& plan) {
  const auto kept = [&](bool plan::LayerGroup::*what) {
    return std::count_if(plan.backward_groups.begin(), plan.backward_groups.end(),
                         [what](const plan::LayerGroup& group) { return group.*what; });
  };
  return absl::StrFormat(
      "%d forward and %d backward layer groups on %d device%s, updates %s, weights of %d and "
      "stashes of %d kept on devices",
      plan.forward_groups.size(), plan.backward_groups.size(), plan.devices.size(),
      plan.devices.size() == 1 ? "" : "s", ToString(plan.update),
      kept(&plan::LayerGroup::keep_weights), kept(&plan::LayerGroup::keep_stash));
}

}  // namespace harmony::service
