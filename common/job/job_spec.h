#pragma once

// The job file, parsed and checked. PURE data; the YAML reader is job_file.h.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/units.h"

namespace harmony::job {

enum class DataFormat { kTextBytes, kTokensU16, kTokensU32 };
enum class OptimizerKind { kAdamW, kSgd };
enum class ScheduleKind { kConstant, kConstantWithWarmup, kLinear, kCosine, kCosineWithMinLr };
enum class UpdateMode { kAuto, kEager, kDeferred };
enum class StashPlacement { kAuto, kDevice, kHost };
enum class ReplanMode { kOff, kSuggest, kAuto };
enum class InitMode { kRandom, kPretrained };
enum class ExportType { kAsSource, kFp32, kBf16 };

const char* ToString(UpdateMode mode);  // as job and plan files have it

// What differs for some parameters, as in PyTorch's parameter groups.
struct ParameterRule {
  // Conditions, at least one of them; a parameter has to fit all that are given.
  std::vector<std::string> names = {};  // patterns of a shell: one has to fit one of its names
  std::vector<int> dimensions = {};     // it has as many as one of these
  // Effects, at least one; what is not given is as without the rule.
  std::optional<double> weight_decay = std::nullopt;
  std::optional<double> learning_rate_factor = std::nullopt;

  bool operator==(const ParameterRule&) const = default;
};

struct JobSpec {
  std::string model_name_or_path;
  InitMode init = InitMode::kRandom;
  std::string data_path;  // a file of tokens; empty: data_inputs are given
  DataFormat data_format = DataFormat::kTextBytes;
  std::map<std::string, std::string> data_inputs;  // files of arrays, by the model's inputs
  // Masked-language-model training on a file of tokens: the share of them that is predicted, and
  // the token that stands in their place. 0: the token after each is predicted.
  double mask_probability = 0;
  int64_t mask_token = 0;
  bool bf16 = false;  // mixed precision: layers compute in bf16, parameters are trained in fp32
  std::optional<DType> gradient_dtype;  // with bf16: fp32 or bf16; none: auto
  int64_t sequence_length = 1024;
  int64_t global_batch_size = 32;
  int64_t micro_batch_size = 0;  // 0: auto
  int64_t max_steps = 100;
  bool shuffle = false;
  OptimizerKind optim = OptimizerKind::kAdamW;
  double learning_rate = 3e-4;
  std::map<int64_t, double> learning_rate_after;  // another rate after so many steps
  ScheduleKind lr_scheduler_type = ScheduleKind::kConstant;
  double warmup_steps = 0;  // below 1: a share of max_steps
  double min_lr_rate = 0.1;
  double weight_decay = 0.1;
  std::vector<ParameterRule> parameter_rules;  // the first that fits decides
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_epsilon = 1e-8;
  double momentum = 0;  // sgd's
  bool nesterov = false;
  std::vector<int> layer_groups;  // empty: auto
  UpdateMode update = UpdateMode::kAuto;
  StashPlacement stash = StashPlacement::kAuto;
  int compute_threads = 1;
  double max_grad_norm = 0;
  uint64_t seed = 0;
  std::string mode = "auto";
  int virtual_replicas = 0;  // 0: auto
  std::string output_dir;
  ExportType export_dtype = ExportType::kAsSource;  // of what final/ has that was trained
  int64_t save_steps = 0;
  int64_t save_total_limit = 2;
  std::string resume_from_checkpoint = "auto";
  // Not a key: the checkpoint of another run with whose state this one began, by its step and a
  // checksum; empty: with its own `init`. Found at admission, and part of what fixes the result.
  std::string begun_from;
  // Not a key either: a checksum of what the model computes (io::ModelSource), found at admission;
  // empty: not known, as in what earlier versions stored.
  std::string model_content;
  int64_t logging_steps = 1;
  ReplanMode replan = ReplanMode::kOff;

  // Steps of warm-up, shares resolved (rounded up, as transformers does).
  int64_t ResolvedWarmupSteps() const;
  // What `virtual_replicas: auto` is: the largest power of two up to 16 that leaves whole
  // microbatches to each; of size `microbatch`, or (0) of the job's, where it has one.
  int AutoReplicas(int64_t microbatch = 0) const;
  // True when all gradients must be committed before any update: the norm of all of them is needed
  // first, or the job wants it.
  bool DeferredUpdates() const { return update == UpdateMode::kDeferred || max_grad_norm > 0; }
};

// What the job's optimizer keeps for each parameter besides it, in the order of the moment objects:
// as PyTorch's optimizers call it, and checkpoints with them ("exp_avg", "momentum_buffer").
std::vector<std::string> MomentNames(const JobSpec& job);
inline int MomentsOf(const JobSpec& job) { return static_cast<int>(MomentNames(job).size()); }

// The learning rate of step s, counted from 0, as transformers' schedule of that name gives it.
double LearningRateAt(const JobSpec& job, int64_t step_index);

}  // namespace harmony::job
