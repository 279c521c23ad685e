// paper_case: one case of the paper's evaluation, a measured profile on some GPUs of its machine:
// Harmony's plans, pipeline and data parallel, beside what people do today, as JSON. run.py runs
// all cases.
//
// The machine is the paper's: each GPU has its own link to a PCIe switch, which has one link to the
// host that the GPUs share in each direction, one copy after the other; GPUs copy to each other
// through the switch.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "bench/baselines/compare/comparison.h"
#include "bench/for_each.h"
#include "bench/paper/ablation.h"
#include "bench/published_planner/files/profile_json.h"
#include "bench/published_planner/ours/imported_model.h"
#include "common/base/status.h"
#include "coordinator/planner/planner.h"

namespace harmony::paper {
namespace {

struct Options {
  std::string profile, memory = "10GiB", host_link = "11.5GiB/s", peer_link = "8.2GiB/s";
  int gpus = 4;
  int64_t batch = 64;
  bool ablation = false;
};

absl::StatusOr<published::ImportedModel> Import(const Options& options,
                                                const published::LayerProfile& profile) {
  HARMONY_ASSIGN_OR_RETURN(const Bytes memory, ParseBytes(options.memory));
  HARMONY_ASSIGN_OR_RETURN(const BytesPerSecond host, ParseBytesPerSecond(options.host_link));
  HARMONY_ASSIGN_OR_RETURN(const BytesPerSecond peer, ParseBytesPerSecond(options.peer_link));
  published::Machine machine;
  machine.gpus = 1;  // who is alone on the link has all of it; they take turns
  machine.memory_bytes = memory.count();
  machine.swap_bytes_per_s = host.value;
  machine.peer_bytes_per_s = peer.value;
  HARMONY_ASSIGN_OR_RETURN(published::ImportedModel imported,
                           published::ImportModel(profile, machine, options.gpus, options.batch));
  for (plan::DeviceSpec& device : imported.machine.devices) device.root = "switch";
  imported.job.max_steps = 1;  // a search is worth a tenth of a step
  return imported;
}

// Harmony in a mode.
struct Ours {
  baselines::Outcome outcome;
  std::vector<Ablated> ablation;
};

absl::StatusOr<Ours> Harmony(const published::ImportedModel& imported, bool data_parallel,
                             bool ablation) {
  job::JobSpec job = imported.job;
  job.mode = data_parallel ? "harmony-dp" : "harmony-pp";
  // As the baselines, each is tuned: no more replicas than it has a use for.
  job.virtual_replicas = data_parallel ? static_cast<int>(imported.machine.devices.size()) : 1;
  planner::PlannerOptions options;
  options.costs = imported.costs;
  Ours ours;
  const absl::StatusOr<planner::PlanResult> planned =
      planner::MakePlan(imported.model, job, imported.machine, options);
  if (absl::IsResourceExhausted(planned.status())) {
    ours.outcome = baselines::HarmonyWithoutPlan(planned.status());
  } else {
    HARMONY_RETURN_IF_ERROR(planned.status());
    ours.outcome = baselines::HarmonyOutcome(imported.model, planned->plan, planned->estimate);
    if (ablation) ours.ablation = SwitchOff(imported, planned->plan);
  }
  ours.outcome.name = job.mode;  // whatever the plan could be called as well
  return ours;
}

Ours BatchDoesNotDivide() {
  Ours ours;
  ours.outcome.name = "harmony-dp";
  ours.outcome.obstacle = baselines::Obstacle::kBatch;
  ours.outcome.reason = "the batch does not divide over the devices";
  return ours;
}

nlohmann::ordered_json AblationJson(const std::vector<Ablated>& ablation) {
  auto rows = nlohmann::ordered_json::array();
  for (const Ablated& ablated : ablation) {
    nlohmann::ordered_json& row = rows.emplace_back();
    row = {{"what", ablated.what}, {"fits", ablated.fits}};
    if (!ablated.fits) continue;
    row["step_seconds"] = ablated.step.seconds();
    row["host_link_bytes"] = ablated.host_link_bytes;
  }
  return rows;
}

// What people do today, and data parallelism with swapping once more as LMS for PyTorch does it:
// tensors come in when a task asks for them, not some tasks ahead.
std::vector<baselines::Baseline> Baselines() {
  std::vector<baselines::Baseline> all = baselines::AllBaselines();
  for (const baselines::Baseline& baseline : baselines::AllBaselines()) {
    if (!absl::StartsWith(baseline.name, "dp-swap")) continue;
    baselines::Baseline& on_demand = all.emplace_back(baseline);
    on_demand.name += ", on demand";
    on_demand.lookahead = 0;
  }
  return all;
}

absl::StatusOr<std::string> Report(const Options& options) {
  if (options.gpus < 1 || options.gpus > 64) {
    return absl::InvalidArgumentError(
        absl::StrCat("--gpus: is ", options.gpus, "; it must lie in 1..64"));
  }
  HARMONY_ASSIGN_OR_RETURN(const published::LayerProfile profile,
                           published::ReadLayerProfile(options.profile));
  HARMONY_ASSIGN_OR_RETURN(const published::ImportedModel imported, Import(options, profile));
  baselines::Comparison comparison;
  comparison.model = profile.model;
  comparison.devices = absl::StrCat(options.gpus, " x ", options.memory, ", host link ",
                                    options.host_link, " shared, peers ", options.peer_link);
  comparison.batch = options.batch;
  comparison.sequence_length = 1;
  comparison.basis = "times measured layer by layer on one GTX 1080 Ti (profile)";
  const std::vector<baselines::Baseline> all = Baselines();
  std::vector<baselines::Outcome> others(all.size());
  const bool divides = options.batch % options.gpus == 0;
  absl::StatusOr<Ours> pipeline = Ours(), data = BatchDoesNotDivide();
  bench::ForEach(static_cast<int>(all.size()) + 2, [&](int i) {
    if (i == 0) {
      pipeline = Harmony(imported, /*data_parallel=*/false, options.ablation);
    } else if (i == 1) {
      if (divides) data = Harmony(imported, /*data_parallel=*/true, options.ablation);
    } else {
      const auto at = static_cast<size_t>(i) - 2;
      others[at] =
          baselines::Best(all[at], imported.model, imported.job, imported.machine, imported.costs);
    }
  });
  HARMONY_RETURN_IF_ERROR(pipeline.status());
  HARMONY_RETURN_IF_ERROR(data.status());
  // The faster of our modes is what others are compared with.
  const bool data_wins = data->outcome.fits() &&
                         (!pipeline->outcome.fits() || data->outcome.step < pipeline->outcome.step);
  comparison.harmony = (data_wins ? data : pipeline)->outcome;
  comparison.others = {(data_wins ? pipeline : data)->outcome};
  comparison.others.insert(comparison.others.end(), others.begin(), others.end());
  auto json = nlohmann::ordered_json::parse(baselines::ComparisonJson(comparison));
  if (options.ablation) {
    json["ablation"] = {{"harmony-pp", AblationJson(pipeline->ablation)},
                        {"harmony-dp", AblationJson(data->ablation)}};
  }
  return json.dump(2);
}

int Run(int argc, char** argv) {
  Options options;
  CLI::App app("A case of the paper's evaluation, as JSON", "paper_case");
  app.add_option("profile", options.profile, "Profile (layer-profile/1)")->required();
  app.add_option("--gpus", options.gpus, "GPUs of the machine that are used")
      ->capture_default_str();
  app.add_option("--batch", options.batch, "Samples of a step")->capture_default_str();
  app.add_option("--memory", options.memory, "Of a GPU")->capture_default_str();
  app.add_option("--host-link", options.host_link, "In each direction, all GPUs together")
      ->capture_default_str();
  app.add_option("--peer-link", options.peer_link, "Of each GPU")->capture_default_str();
  app.add_flag("--ablation", options.ablation,
               "Also our plans with each optimisation switched off by itself");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::StatusOr<std::string> report = Report(options);
  if (!report.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(report.status().message()).c_str());
    return ExitCodeOf(report.status());
  }
  std::printf("%s\n", report->c_str());
  return 0;
}

}  // namespace
}  // namespace harmony::paper

int main(int argc, char** argv) { return harmony::paper::Run(argc, argv); }
