#include "common/job/parameter_rules.h"

#include <fnmatch.h>

#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/document/nearest_name.h"

namespace harmony::job {
namespace {

using absl::string_view;
using model::TensorSpec;

constexpr size_t kNamesOffered = 3;
constexpr int kNone = -1;

bool AnyFits(const std::vector<std::string>& patterns, const std::string& name) {
  return absl::c_any_of(patterns, [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

bool NamesFit(const ParameterRule& rule, const TensorSpec& tensor) {
  return rule.names.empty() || AnyFits(rule.names, tensor.name) ||
         absl::c_any_of(tensor.aliases,
                        [&](const std::string& alias) { return AnyFits(rule.names, alias); });
}

bool Fits(const ParameterRule& rule, const TensorSpec& tensor) {
  return NamesFit(rule, tensor) &&
         (rule.dimensions.empty() ||
          absl::c_linear_search(rule.dimensions, static_cast<int>(tensor.shape.size())));
}

// The number of the first rule that fits, from 0.
int RuleFor(const std::vector<ParameterRule>& rules, const TensorSpec& tensor) {
  const auto found =
      absl::c_find_if(rules, [&](const ParameterRule& rule) { return Fits(rule, tensor); });
  return found == rules.end() ? kNone : static_cast<int>(found - rules.begin());
}

std::vector<const TensorSpec*> TensorsOf(const model::ModelSpec& model) {
  std::vector<const TensorSpec*> tensors;
  for (const model::ParamBlock& block : model.blocks) {
    for (const TensorSpec& tensor : block.tensors) tensors.push_back(&tensor);
  }
  return tensors;
}

std::string NoNameFits(const ParameterRule& rule, const std::vector<const TensorSpec*>& tensors) {
  std::vector<string_view> known;
  for (const TensorSpec* tensor : tensors) {
    if (tensor->role != model::TensorRole::kTrained) continue;
    known.push_back(tensor->name);
    known.insert(known.end(), tensor->aliases.begin(), tensor->aliases.end());
  }
  const absl::Span<const std::string> shown =
      absl::MakeConstSpan(rule.names).subspan(0, kNamesOffered);
  std::vector<string_view> nearest;
  for (const std::string& pattern : shown) {
    for (const string_view name :
         document::NearestNames(pattern, known, kNamesOffered / shown.size())) {
      if (!absl::c_linear_search(nearest, name)) nearest.push_back(name);
    }
  }
  return absl::StrCat("none has a name like '", absl::StrJoin(shown, "' or '"),
                      "'; the nearest that the model has: ", absl::StrJoin(nearest, ", "));
}

// Why a rule decides nothing, and what to do.
std::string WhyNone(const std::vector<ParameterRule>& rules, int number,
                    const std::vector<const TensorSpec*>& tensors) {
  const ParameterRule& rule = rules[static_cast<size_t>(number)];
  std::set<size_t> dimensions;  // of those whose names fit
  const TensorSpec* untrained = nullptr;
  for (const TensorSpec* tensor : tensors) {
    if (!NamesFit(rule, *tensor)) continue;
    if (tensor->role != model::TensorRole::kTrained) {
      untrained = tensor;
      continue;
    }
    dimensions.insert(tensor->shape.size());
    if (Fits(rule, *tensor)) {
      return absl::StrCat("what it fits is decided by rules before it (", tensor->name, " by rule ",
                          RuleFor(rules, *tensor) + 1,
                          "), for the first that fits decides: put it before them, or remove it");
    }
  }
  if (!dimensions.empty()) {
    return absl::StrCat(
        rule.names.empty() ? "the parameters have " : "those with such a name have ",
        absl::StrJoin(dimensions, " or "), " dimensions, not ",
        absl::StrJoin(rule.dimensions, " or "));
  }
  if (untrained != nullptr) {
    return absl::StrCat(untrained->name, " is not trained; remove the rule");
  }
  return NoNameFits(rule, tensors);
}

}  // namespace

absl::Status ApplyParameterRules(const JobSpec& job, model::ModelSpec* model) {
  const std::vector<ParameterRule>& rules = job.parameter_rules;
  std::vector<bool> decides(rules.size());
  for (model::ParamBlock& block : model->blocks) {
    for (TensorSpec& tensor : block.tensors) {
      const int number = RuleFor(rules, tensor);
      if (number == kNone || tensor.role != model::TensorRole::kTrained) continue;
      const ParameterRule& rule = rules[static_cast<size_t>(number)];
      tensor.own_weight_decay = rule.weight_decay;
      tensor.learning_rate_factor = rule.learning_rate_factor.value_or(1);
      decides[static_cast<size_t>(number)] = true;
    }
  }
  const auto idle = absl::c_find(decides, false);
  if (idle == decides.end()) return absl::OkStatus();
  const int number = static_cast<int>(idle - decides.begin());
  return absl::InvalidArgumentError(absl::StrCat(
      "parameter_rules: rule ", number + 1,
      " decides no parameter of the model: ", WhyNone(rules, number, TensorsOf(*model))));
}

namespace {

// The types of an exported model are those that it was exported with: the key has to say the same.
absl::Status CheckPrecision(const JobSpec& job, const model::Architecture& architecture) {
  const auto* const exported = std::get_if<model::ExportedModel>(&architecture);
  if (exported == nullptr) return absl::OkStatus();
  const bool narrow =
      absl::c_any_of(exported->parameters, [](const model::ExportedParameter& parameter) {
        return parameter.role == model::TensorRole::kTrained && parameter.dtype == DType::kBF16;
      });
  if (narrow == job.bf16) return absl::OkStatus();
  return absl::InvalidArgumentError(
      narrow
          ? "bf16: the model was exported in bf16, or computes under autocast, and is trained in "
            "mixed precision: set bf16: true (for fp32, export it with dtype fp32, and without "
            "torch.autocast in its code)"
          : "bf16: the model was exported in fp32: export it with --dtype bf16 or --dtype "
            "autocast (from Python dtype=\"bf16\"), or set bf16: false");
}

}  // namespace

absl::StatusOr<model::ModelSpec> ModelOf(const model::Architecture& architecture,
                                         const JobSpec& job) {
  return ModelOf(architecture, job, job.gradient_dtype.value_or(DType::kF32));
}

absl::StatusOr<model::ModelSpec> ModelOf(const model::Architecture& architecture,
                                         const JobSpec& job, DType gradient_dtype) {
  HARMONY_RETURN_IF_ERROR(CheckPrecision(job, architecture));
  model::ModelSpec model = model::BuildModelSpec(architecture, job.sequence_length,
                                                 job.bf16 ? DType::kBF16 : DType::kF32);
  for (model::LayerCost& cost : model.costs) {
    cost.bound = cost.bound.WithThreads(job.compute_threads);
  }
  HARMONY_RETURN_IF_ERROR(ApplyParameterRules(job, &model));
  model::StoreGradientsAs(gradient_dtype, model);
  return model;
}

}  // namespace harmony::job
