#include "coordinator/paper/judge_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/plan/lane_queue.h"
#include "common/plan/plan_json.h"
#include "coordinator/planner/device_need.h"

namespace harmony::paper {
namespace {

using Json = nlohmann::ordered_json;

Json PacksJson(const std::vector<LayerGroup>& groups) {
  Json json = Json::array();
  for (const LayerGroup& group : groups) json.push_back({group.layers.first, group.layers.last});
  return json;
}

std::string GroupsText(const std::vector<LayerGroup>& groups) {
  std::string text;
  for (const LayerGroup& group : groups) {
    absl::StrAppend(&text, " ", group.layers.first, "-", group.layers.last, "@", group.device,
                    group.keep_weights ? "w" : "", group.keep_stash ? "s" : "");
  }
  return text.empty() ? " none (the one backward group runs it)" : text;
}

// The whole plan: that of a data-parallel step is known by the part of one GPU.
Plan WholePlan(const JudgeReport& report) {
  Plan plan = report.plan;
  if (report.mode != Mode::kDataParallel) return plan;
  plan.mode = ParallelMode::kData;
  plan.replicas = report.machine.gpus;
  plan.num_microbatches *= plan.replicas;
  plan.devices.resize(static_cast<size_t>(plan.replicas), plan.devices.front());
  return plan;
}

int64_t SwapBytes(const harmony::Estimate& estimate) {
  int64_t sum = 0;
  for (int64_t bytes : estimate.bytes) sum += bytes;
  return sum;
}

}  // namespace

std::string ToJsonText(const LayerProfile& profile, const JudgeReport& report) {
  const Plan& plan = report.plan;
  Json json = {{"cost_model", "harmony"},
               {"model", profile.model},
               {"mode", std::string(ToString(report.mode))},
               {"gpus", report.machine.gpus},
               {"minibatch", report.minibatch},
               {"memory_bytes", report.machine.memory_bytes},
               {"u_fwd", plan.forward_size()},
               {"pack_fwd", PacksJson(plan.forward_groups)},
               {"u_bwd", plan.microbatch_size},
               {"pack_bwd", PacksJson(plan.backward_groups)},
               {"step_s", report.estimate.step.seconds()},
               {"fits", report.fits},
               {"swap_bytes", SwapBytes(report.estimate)},
               {"p2p_bytes", report.estimate.peer_bytes},
               {"plan", Json::parse(PlanFileText(WholePlan(report)))}};
  if (report.searched) {
    json["lower_bound_s"] = report.lower_bound_s;
    json["gap"] = report.estimate.step.seconds() / report.lower_bound_s - 1;
    json["search_s"] = report.search_s;
    json["bounded"] = report.bounded;
    json["simulations"] = report.simulations;
    json["sizes"] = report.sizes;
  }
  return json.dump(2);
}

std::string ToText(const LayerProfile& profile, const JudgeReport& report) {
  const Plan& plan = report.plan;
  std::string text =
      absl::StrFormat("%s, %s on %d GPUs of %s, minibatch %d, by our own dispatcher\n",
                      profile.model, ToString(report.mode), report.machine.gpus,
                      FormatBytesExact(Bytes(report.machine.memory_bytes)), report.minibatch);
  absl::StrAppend(&text, "  forward   microbatch ", plan.forward_size(),
                  "; groups:", GroupsText(plan.forward_groups), "\n");
  absl::StrAppend(&text, "  backward  microbatch ", plan.microbatch_size,
                  "; groups:", GroupsText(plan.backward_groups), "\n");
  absl::StrAppend(&text, "  updates ", ToString(plan.update), ", ", plan.stream_slots, " slots\n");
  absl::StrAppendFormat(&text, "  step      %.6f s%s\n", report.estimate.step.seconds(),
                        report.fits ? ""
                                    : "; does not fit by our count of memory, and was given what "
                                      "it lacks");
  absl::StrAppend(
      &text, "  moved     ",
      report.mode == Mode::kDataParallel ? "by each GPU: host and GPU " : "host and GPUs ",
      FormatBytes(Bytes(SwapBytes(report.estimate))), ", GPU to GPU ",
      FormatBytes(Bytes(report.estimate.peer_bytes)), "\n");
  if (report.searched) {
    absl::StrAppendFormat(&text,
                          "  search    %.2f s, %d plans bounded, %d simulated, of %d microbatch "
                          "sizes; lower bound %.6f s, gap %.2f%%\n",
                          report.search_s, report.bounded, report.simulations, report.sizes,
                          report.lower_bound_s,
                          100 * (report.estimate.step.seconds() / report.lower_bound_s - 1));
  }
  return text;
}

std::string Explanation(const ModelSpec& model, const JudgeReport& report) {
  std::string text =
      "\n  phase             layers   GPU  weights     gradients   buffers     kept        "
      "workspace\n";
  for (const GroupNeed& need : NeedOfGroups(model, report.plan)) {
    absl::StrAppendFormat(
        &text, "  %-16s  %-7s  %3d  %-10s  %-10s  %-10s  %-10s  %s\n", harmony::KindName(need.kind),
        absl::StrCat(need.layers.first, "-", need.layers.last), need.device,
        FormatBytes(need.weights), FormatBytes(need.gradients), FormatBytes(need.streaming),
        FormatBytes(need.kept), FormatBytes(need.workspace));
  }
  text += "\n  busy, of the step:";
  const LaneTable lanes(static_cast<int>(report.plan.devices.size()));
  for (size_t lane = 0; lane < report.estimate.lanes.size(); ++lane) {
    const LaneUse& use = report.estimate.lanes[lane];
    if (use.busy.count() == 0) continue;
    absl::StrAppendFormat(&text, "\n  %-14s %6.1f%%",
                          DebugString(lanes.LaneAt(static_cast<int>(lane))),
                          100 * use.busy.seconds() / report.estimate.step.seconds());
  }
  return text + "\n";
}

}  // namespace harmony::paper
