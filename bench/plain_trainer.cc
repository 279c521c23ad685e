// Runs a job file without Harmony: one process, everything in memory, nothing swapped. The
// yardstick of speed and, with its metrics and export, of exactness.
//
//   plain_trainer JOB.yaml [--set key=value]... [--groups each|one] [--no-output]
//
// Writes output_dir/metrics.jsonl and output_dir/final/ like `harmony run` unless --no-output.
// --groups each (the default) recomputes every block in backward, as Harmony does; one keeps all.

#include <malloc.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/io/checkpoint_reader.h"
#include "common/io/file.h"
#include "common/io/hf_directory.h"
#include "common/io/hf_export.h"
#include "common/io/sequence_order.h"
#include "common/io/token_file.h"
#include "common/io/weight_map.h"
#include "common/job/job_file.h"
#include "common/job/parameter_rules.h"
#include "common/model/families/causal_lm.h"
#include "common/model/padding_token.h"
#include "tests/support/plain_trainer.h"

namespace harmony::bench {
namespace {

using ::harmony::testing_support::PlainTrainer;
using ::harmony::testing_support::StepResult;

struct Options {
  std::string job_path;
  std::vector<std::string> settings;
  std::string groups = "each";
  bool no_output = false;
};

absl::StatusOr<job::JobSpec> LoadJob(const Options& options) {
  HARMONY_ASSIGN_OR_RETURN(const std::string text, io::ReadWholeFile(options.job_path, 1 << 20));
  job::JobOverrides overrides;
  overrides.settings = options.settings;
  overrides.folder = std::filesystem::current_path().string();
  HARMONY_ASSIGN_OR_RETURN(const job::JobFile file,
                           job::ReadJobFile(text, options.job_path, overrides));
  const job::JobSpec& job = file.job;
  if (job.micro_batch_size == 0) {
    return absl::InvalidArgumentError("micro_batch_size: a number is needed here, not auto");
  }
  return job;
}

std::vector<model::LayerRange> Groups(const Options& options, const job::JobSpec& job,
                                      const model::ModelSpec& model) {
  std::vector<model::LayerRange> groups;
  if (options.groups == "one") return groups;
  if (job.layer_groups.empty()) {
    for (int layer = 0; layer < model.num_layers(); ++layer) groups.push_back({layer, layer});
    return groups;
  }
  int first = 0;
  for (int count : job.layer_groups) {
    groups.push_back({first, first + count - 1});
    first += count;
  }
  return groups;
}

absl::StatusOr<io::WeightMap> LoadWeights(const job::JobSpec& job, const io::ModelSource& source,
                                          PlainTrainer& trainer) {
  const model::ModelSpec& model = trainer.model();
  if (job.init == job::InitMode::kRandom) {
    trainer.InitializeRandom(job.seed);
    return io::WeightMap::ForNewModel(model);
  }
  HARMONY_ASSIGN_OR_RETURN(const io::CheckpointReader reader,
                           io::CheckpointReader::OpenDirectory(source.directory));
  HARMONY_ASSIGN_OR_RETURN(io::WeightMap names, io::WeightMap::Match(model, reader));
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    for (const model::TensorSpec& tensor : model.blocks[b].tensors) {
      HARMONY_RETURN_IF_ERROR(
          reader.ReadF32(names.of(tensor).name, trainer.values(static_cast<int>(b), tensor)));
    }
  }
  trainer.RoundWeights();
  return names;
}

struct Batch {
  std::vector<int32_t> tokens, labels;
};

absl::Status ReadBatch(const io::TokenFile& file, const io::SequenceOrder& order,
                       const job::JobSpec& job, int64_t step, Batch& batch) {
  std::vector<int32_t> sequence(job.sequence_length + 1);
  batch.tokens.clear();
  batch.labels.clear();
  for (int64_t i = 0; i < job.global_batch_size; ++i) {
    HARMONY_RETURN_IF_ERROR(
        file.ReadSequence(order.SequenceIndex(step, i), absl::MakeSpan(sequence)));
    batch.tokens.insert(batch.tokens.end(), sequence.begin(), sequence.end() - 1);
    batch.labels.insert(batch.labels.end(), sequence.begin() + 1, sequence.end());
  }
  return absl::OkStatus();
}

absl::Status TrainSteps(const job::JobSpec& job, const io::TokenFile& file, PlainTrainer& trainer,
                        std::ofstream& metrics) {
  const io::SequenceOrder order(file.SequenceCount(job.sequence_length), job.global_batch_size,
                                job.shuffle, job.seed);
  Batch batch;
  for (int64_t step = 0; step < job.max_steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    HARMONY_RETURN_IF_ERROR(ReadBatch(file, order, job, step, batch));
    auto result = trainer.Step(batch.tokens, batch.labels);
    HARMONY_RETURN_IF_ERROR_CTX(result.status(), absl::StrCat("step ", step + 1));
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    const double rate = static_cast<double>(batch.tokens.size()) / elapsed.count();
    const std::string line = absl::StrFormat(
        R"({"step": %d, "loss": %.17g, "grad_norm": %.17g, "learning_rate": %.17g, )"
        R"("tokens_per_second": %.6g})",
        step + 1, result->loss, result->grad_norm, result->learning_rate, rate);
    std::puts(line.c_str());
    std::fflush(stdout);
    if (metrics.is_open()) metrics << line << "\n";
  }
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  HARMONY_ASSIGN_OR_RETURN(const job::JobSpec job, LoadJob(options));
  worker::SetComputeThreads(job.compute_threads);
  HARMONY_ASSIGN_OR_RETURN(const io::ModelSource source,
                           io::OpenModelSource(job.model_name_or_path));
  const auto* const config = std::get_if<model::ModelConfig>(&source.architecture);
  if (config == nullptr) {
    return absl::UnimplementedError("the plain trainer trains models of the built-in families");
  }
  HARMONY_ASSIGN_OR_RETURN(const model::ModelSpec model, job::ModelOf(*config, job));
  HARMONY_ASSIGN_OR_RETURN(const io::TokenFile file,
                           io::TokenFile::Open(job.data_path, job.data_format));
  HARMONY_RETURN_IF_ERROR(
      file.Validate(config->vocab_size, job.sequence_length, job.global_batch_size));
  PlainTrainer trainer(*config, job, Groups(options, job, model),
                       static_cast<int>(std::thread::hardware_concurrency()));
  trainer.set_padding_token(model::PaddingToken(source.config_json));
  HARMONY_ASSIGN_OR_RETURN(const io::WeightMap names, LoadWeights(job, source, trainer));
  std::ofstream metrics;
  if (!options.no_output) {
    std::filesystem::create_directories(job.output_dir);
    metrics.open(job.output_dir + "/metrics.jsonl");
  }
  HARMONY_RETURN_IF_ERROR(TrainSteps(job, file, trainer, metrics));
  if (options.no_output) return absl::OkStatus();
  const auto values = [&](const model::ParamBlock& block, const model::TensorSpec& tensor) {
    const int index = static_cast<int>(&block - trainer.model().blocks.data());
    const absl::Span<const float> weights = trainer.values(index, tensor);
    return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(weights.data()),
                               weights.size() * sizeof(float));
  };
  return io::ExportModel(job.output_dir + "/final", trainer.model(), names, values,
                         source.config_json, source.directory);
}

}  // namespace
}  // namespace harmony::bench

int main(int argc, char** argv) {
  // Keep freed memory mapped: a fifth of the speed, else spent on page faults.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  harmony::bench::Options options;
  CLI::App app{"Trains a job file in one plain process"};
  app.add_option("job", options.job_path, "JOB.yaml")->required();
  app.add_option("--set", options.settings, "key=value, replaces a key of the file");
  app.add_option("--groups", options.groups)->check(CLI::IsMember({"each", "one"}));
  app.add_flag("--no-output", options.no_output, "write nothing to output_dir");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = harmony::bench::Run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "plain_trainer: %s\n", std::string(status.message()).c_str());
  return harmony::ExitCodeOf(status);
}
