#include "coordinator/paper/plan_report.h"

#include <nlohmann/json.hpp>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/base/units.h"

namespace harmony::paper {
namespace {

using Json = nlohmann::ordered_json;

Json PacksJson(const std::vector<Pack>& packs) {
  Json json = Json::array();
  for (const Pack& pack : packs) json.push_back({pack.first, pack.last});
  return json;
}

std::string PacksText(const std::vector<Pack>& packs) {
  if (packs.empty()) return "none (the one backward pack runs it)";
  std::string text;
  for (const Pack& pack : packs) {
    absl::StrAppend(&text, text.empty() ? "" : " ", pack.first, "-", pack.last);
  }
  return text;
}

int64_t Weights(const LayerProfile& profile, const Pack& pack) {
  int64_t bytes = 0;
  for (int l = pack.first; l <= pack.last; ++l) {
    bytes += profile.param_bytes[l] + profile.buffer_bytes[l];
  }
  return bytes;
}

// One line a pack, in the order they run.
std::string PackTable(const LayerProfile& profile, const PlanReport& report) {
  std::string text = "\n  task  phase     GPU  layers       weights      compute of a microbatch\n";
  int task = 0;
  const auto line = [&](const char* phase, const Pack& pack, const absl::StatusOr<PhaseAt>& at) {
    double seconds = 0;
    for (int l = pack.first; l <= pack.last; ++l) seconds += at->time_s[l];
    const std::string gpu =
        report.mode == Mode::kPipeline ? absl::StrCat(task % report.machine.gpus) : "all";
    absl::StrAppend(&text, absl::StrFormat("  %4d  %-8s  %3s  %-11s  %-11s  %.4f s\n", task, phase,
                                           gpu, absl::StrCat(pack.first, "-", pack.last),
                                           FormatBytes(Bytes(Weights(profile, pack))), seconds));
    ++task;
  };
  const Schedule& schedule = report.schedule;
  const auto forward = At(profile.forward, "fwd", schedule.u_fwd);
  for (const Pack& pack : schedule.forward) line("forward", pack, forward);
  const auto backward = At(profile.backward, "bwd", schedule.u_bwd);
  for (auto pack = schedule.backward.rbegin(); pack != schedule.backward.rend(); ++pack) {
    line("backward", *pack, backward);
  }
  return text;
}

std::string Explanation(const LayerProfile& profile, const PlanReport& report) {
  std::string text = PackTable(profile, report);
  absl::StrAppend(&text, "\n  GPUs end at");
  for (double end : report.estimate.gpu_end_s)
    absl::StrAppend(&text, absl::StrFormat(" %.3f", end));
  absl::StrAppend(&text, " s", report.mode == Mode::kDataParallel ? " (one stands for all)" : "",
                  ".\n");
  if (!report.searched) return text;
  if (report.lower_bound_s >= report.estimate.time_s) {
    absl::StrAppend(&text,
                    "  One GPU's tasks run one after the other here, so dynamic programming ",
                    "finds the optimum: no schedule of this model is faster.\n");
  } else {
    absl::StrAppend(
        &text, "  Bound: all loads, microbatches, gradient stores and delays, shared ",
        "evenly by the GPUs,\n  of the cuts with least of them, and no time lost while ",
        "the pipeline fills and drains.\n");
  }
  return text;
}

}  // namespace

absl::Status Measure(const LayerProfile& profile, PlanReport* report) {
  HARMONY_ASSIGN_OR_RETURN(report->estimate,
                           Simulate(profile, report->machine, report->mode, report->minibatch,
                                    report->schedule, Prefetch::kOff));
  HARMONY_ASSIGN_OR_RETURN(const Estimate prefetch,
                           Simulate(profile, report->machine, report->mode, report->minibatch,
                                    report->schedule, Prefetch::kOn));
  report->prefetch_time_s = prefetch.time_s;
  HARMONY_ASSIGN_OR_RETURN(report->memory, MaxPackMemory(profile, report->schedule));
  return absl::OkStatus();
}

std::string ToJsonText(const LayerProfile& profile, const PlanReport& report) {
  const Estimate& estimate = report.estimate;
  Json json = {{"cost_model", "paper"},
               {"model", profile.model},
               {"mode", std::string(ToString(report.mode))},
               {"gpus", report.machine.gpus},
               {"minibatch", report.minibatch},
               {"memory_bytes", report.machine.memory_bytes},
               {"u_fwd", report.schedule.u_fwd},
               {"pack_fwd", PacksJson(report.schedule.forward)},
               {"u_bwd", report.schedule.u_bwd},
               {"pack_bwd", PacksJson(report.schedule.backward)},
               {"est_time_s", estimate.time_s},
               {"est_time_prefetch_s", report.prefetch_time_s},
               {"per_rank_end_s", estimate.gpu_end_s},
               {"fits", report.fits()},
               {"max_pack_memory_fwd_bytes", report.memory.forward_bytes},
               {"max_pack_memory_bwd_bytes", report.memory.backward_bytes},
               {"swap_in_bytes", estimate.swap_in_bytes},
               {"swap_out_bytes", estimate.swap_out_bytes},
               {"swap_bytes", estimate.swap_in_bytes + estimate.swap_out_bytes},
               {"p2p_bytes", estimate.peer_bytes},
               {"allreduce_bytes", estimate.allreduce_bytes}};
  if (report.searched) {
    json["lower_bound_s"] = report.lower_bound_s;
    json["gap"] = estimate.time_s / report.lower_bound_s - 1;
    json["search_s"] = report.search_s;
    json["evaluations"] = report.evaluations;
    json["size_pairs"] = report.size_pairs;
  }
  return json.dump(2);
}

std::string ToText(const LayerProfile& profile, const PlanReport& report, bool explain) {
  const Estimate& estimate = report.estimate;
  const Schedule& schedule = report.schedule;
  std::string text = absl::StrFormat(
      "%s, %s on %d GPUs of %s, minibatch %d, by the published planner's cost model\n",
      profile.model, ToString(report.mode), report.machine.gpus,
      FormatBytesExact(Bytes(report.machine.memory_bytes)), report.minibatch);
  absl::StrAppend(&text, "  forward   microbatch ", schedule.u_fwd, ", ", schedule.forward.size(),
                  " packs: ", PacksText(schedule.forward), "\n");
  absl::StrAppend(&text, "  backward  microbatch ", schedule.u_bwd, ", ", schedule.backward.size(),
                  " packs: ", PacksText(schedule.backward), "\n");
  absl::StrAppend(&text, absl::StrFormat("  iteration %.6f s; with prefetch overlapped %.6f s\n",
                                         estimate.time_s, report.prefetch_time_s));
  absl::StrAppend(&text, "  memory    forward ", FormatBytes(Bytes(report.memory.forward_bytes)),
                  ", backward ", FormatBytes(Bytes(report.memory.backward_bytes)),
                  report.fits() ? "" : ": does NOT fit", "\n");
  absl::StrAppend(&text, "  moved     in ", FormatBytes(Bytes(estimate.swap_in_bytes)), ", out ",
                  FormatBytes(Bytes(estimate.swap_out_bytes)), ", GPU to GPU ",
                  FormatBytes(Bytes(estimate.peer_bytes)), ", all-reduce ",
                  FormatBytes(Bytes(estimate.allreduce_bytes)), "\n");
  if (report.searched) {
    absl::StrAppend(
        &text,
        absl::StrFormat("  search    %.2f s, %d schedules timed, %d pairs of sizes; lower "
                        "bound %.6f s, gap %.2f%%\n",
                        report.search_s, report.evaluations, report.size_pairs,
                        report.lower_bound_s, 100 * (estimate.time_s / report.lower_bound_s - 1)));
  }
  if (explain) text += Explanation(profile, report);
  return text;
}

}  // namespace harmony::paper
