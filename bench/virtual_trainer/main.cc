// virtual_trainer: trains a job with what people do today, for real (virtual_trainer.h), and prints
// what it took beside what the model of it says, as one line of JSON. bench/virtual_trainer.py
// compares it with Harmony.
//
//   virtual_trainer --job JOB.yaml --devices SPEC --baseline NAME [--set key=value]...
//   [--only-model]
//
// NAME: dp-swap, gpipe-swap, 1f1b-swap or 1f1b-flush-swap, or "dp-swap, recompute" and so on
// (bench/baselines/baseline.cc). Whether dirty tensors are written back ahead, and which recompute
// there is of two, is the faster one by the model. Devices have speeds: copies and tasks take as
// long as these say, at least.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/plan_costs.h"
#include "bench/virtual_trainer/device_pages.h"
#include "bench/virtual_trainer/virtual_trainer.h"
#include "common/base/status.h"
#include "common/io/hf_directory.h"
#include "common/io/sequence_order.h"
#include "common/io/token_file.h"
#include "common/model/padding_token.h"
#include "coordinator/service/jobs/plan_request.h"

namespace harmony::bench {
namespace {

using baselines::Baseline;
using baselines::LayerCosts;
using baselines::Outcome;
using baselines::Setting;
using baselines::StepBytes;
using baselines::Traffic;
using nlohmann::json;

struct Options {
  service::PlanOptions plan;
  std::string baseline = "dp-swap";
  bool only_model = false;
};

absl::StatusOr<const Baseline*> FindBaseline(const std::string& name) {
  std::string known;
  for (const Baseline& baseline : baselines::AllBaselines()) {
    if (baseline.updates_on_host()) continue;
    if (baseline.name == name) return &baseline;
    absl::StrAppend(&known, known.empty() ? "" : "; ", baseline.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("--baseline: ", name, " is none of: ", known));
}

// The one that is fastest by the model.
absl::StatusOr<Setting> BestSetting(const Baseline& baseline, const LayerCosts& costs, int steps) {
  const job::JobSpec& job = costs.job();
  const int64_t ranks = baseline.data_parallel ? costs.num_devices() : 1;
  if (job.global_batch_size % (ranks * costs.microbatch()) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a batch of ", job.global_batch_size, " is no whole number of microbatches of ",
        costs.microbatch(), " on each of ", ranks, " devices"));
  }
  std::optional<Setting> best;
  Outcome best_outcome;
  for (baselines::Recompute recompute : baseline.recompute) {
    for (bool ahead : {true, false}) {
      if (ahead && !baseline.may_write_back_ahead) continue;
      Setting setting;
      setting.recompute = recompute;
      setting.microbatches = static_cast<int>(job.global_batch_size / (ranks * costs.microbatch()));
      setting.paging = {.lookahead = baseline.lookahead, .writes_back_ahead = ahead, .page = kPage};
      const Outcome outcome = baselines::Simulate(baseline, costs, setting);
      const bool better =
          !best || (outcome.fits() && (!best_outcome.fits() || outcome.step < best_outcome.step));
      if (!better) continue;
      best = setting;
      best_outcome = outcome;
    }
  }
  if (!best_outcome.fits()) return absl::ResourceExhaustedError(best_outcome.reason);
  best->steps = steps;
  return *best;
}

json BytesJson(const StepBytes& bytes) {
  json result;
  int64_t peer = 0;
  for (int t = 0; t < baselines::kTrafficClasses; ++t) {
    const auto traffic = static_cast<Traffic>(t);
    result[baselines::ToString(traffic)] = bytes.of(traffic);
    peer += bytes.p2p[static_cast<size_t>(t)];
  }
  result["host_links"] = bytes.host_links();
  result["peer"] = peer;
  return result;
}

json SettingJson(const Setting& setting) {
  return {{"recompute", baselines::ToString(setting.recompute)},
          {"writes_back_ahead", setting.paging.writes_back_ahead},
          {"microbatches", setting.microbatches}};
}

absl::StatusOr<std::vector<Batch>> ReadBatches(const job::JobSpec& job,
                                               const model::ModelConfig& config, int steps) {
  HARMONY_ASSIGN_OR_RETURN(const io::TokenFile file,
                           io::TokenFile::Open(job.data_path, job.data_format));
  HARMONY_RETURN_IF_ERROR(
      file.Validate(config.vocab_size, job.sequence_length, job.global_batch_size));
  const io::SequenceOrder order(file.SequenceCount(job.sequence_length), job.global_batch_size,
                                job.shuffle, job.seed);
  std::vector<Batch> batches(static_cast<size_t>(steps));
  std::vector<int32_t> sequence(static_cast<size_t>(job.sequence_length) + 1);
  for (int step = 0; step < steps; ++step) {
    Batch& batch = batches[static_cast<size_t>(step)];
    for (int64_t i = 0; i < job.global_batch_size; ++i) {
      HARMONY_RETURN_IF_ERROR(
          file.ReadSequence(order.SequenceIndex(step, i), absl::MakeSpan(sequence)));
      batch.tokens.insert(batch.tokens.end(), sequence.begin(), sequence.end() - 1);
      batch.labels.insert(batch.labels.end(), sequence.begin() + 1, sequence.end());
    }
  }
  return batches;
}

absl::StatusOr<json> Run(const Options& options) {
  HARMONY_ASSIGN_OR_RETURN(const service::PlanRequest request,
                           service::ReadPlanRequest(options.plan));
  HARMONY_ASSIGN_OR_RETURN(const service::AdmittedJob job, service::ReadJob(request.job));
  HARMONY_ASSIGN_OR_RETURN(const Baseline* const baseline, FindBaseline(options.baseline));
  if (job.spec.micro_batch_size == 0) {
    return absl::InvalidArgumentError("micro_batch_size: a number is needed here, not auto");
  }
  if (job.spec.init != job::InitMode::kRandom) {
    return absl::UnimplementedError("init: random alone");
  }
  HARMONY_ASSIGN_OR_RETURN(const io::ModelSource source,
                           io::OpenModelSource(job.spec.model_name_or_path));
  const auto* const config = std::get_if<model::ModelConfig>(&source.architecture);
  if (config == nullptr) return absl::UnimplementedError("models of the built-in families alone");
  HARMONY_ASSIGN_OR_RETURN(const dispatch::CostFactory factory,
                           CostsOf(request.job, job, request.machine));
  const LayerCosts costs(job.model, job.spec, request.machine, factory, job.spec.micro_batch_size);
  const int steps = static_cast<int>(job.spec.max_steps);
  HARMONY_ASSIGN_OR_RETURN(const Setting setting, BestSetting(*baseline, costs, steps));
  Setting compared = setting;
  compared.steps = Setting().steps;
  const Outcome in_pages = baselines::Simulate(*baseline, costs, compared);
  compared.paging.page = 1;
  const Outcome in_bytes = baselines::Simulate(*baseline, costs, compared);
  json result = {
      {"baseline", baseline->name},
      {"setting", SettingJson(setting)},
      {"model",
       {{"seconds", in_pages.step.seconds()},
        {"swap_bytes", in_pages.host_link_bytes},
        {"binds", in_pages.binds}}},
      {"model_without_pages",
       {{"seconds", in_bytes.step.seconds()}, {"swap_bytes", in_bytes.host_link_bytes}}}};
  if (options.only_model) return result;
  HARMONY_ASSIGN_OR_RETURN(
      const std::unique_ptr<VirtualTrainer> trainer,
      VirtualTrainer::Create({.config = config,
                              .padding_token = model::PaddingToken(source.config_json),
                              .costs = &costs,
                              .baseline = baseline,
                              .setting = setting}));
  trainer->InitializeRandom(job.spec.seed);
  // A pipeline without a flush begins a step more than is looked at.
  HARMONY_ASSIGN_OR_RETURN(const std::vector<Batch> batches,
                           ReadBatches(job.spec, *config, steps + 1));
  HARMONY_ASSIGN_OR_RETURN(const VirtualRun run, trainer->Run(batches, /*paced=*/true));
  result["paced"] = run.paced;
  result["overruns"] = run.overruns;
  for (const VirtualStep& step : run.steps) {
    result["steps"].push_back({{"loss", step.loss},
                               {"seconds", step.seconds},
                               {"modelled_seconds", step.modelled_seconds},
                               {"update_seconds", step.update_seconds},
                               {"bytes", BytesJson(step.moved)},
                               {"modelled_bytes", BytesJson(step.modelled)}});
  }
  return result;
}

}  // namespace
}  // namespace harmony::bench

int main(int argc, char** argv) {
  harmony::bench::Options options;
  CLI::App app{"Trains a job on devices with virtualised memory"};
  app.add_option("--devices", options.plan.devices, "device string")->required();
  app.add_option("--baseline", options.baseline, "what to train with");
  app.add_flag("--only-model", options.only_model, "what the model says, and no run");
  harmony::service::AddPlanOptions(app, "", &options.plan);
  app.get_option("--job")->required();
  CLI11_PARSE(app, argc, argv);
  const absl::StatusOr<nlohmann::json> result = harmony::bench::Run(options);
  if (!result.ok()) {
    std::fprintf(stderr, "virtual_trainer: %s\n", std::string(result.status().message()).c_str());
    return harmony::ExitCodeOf(result.status());
  }
  std::puts(result->dump().c_str());
  return 0;
}
