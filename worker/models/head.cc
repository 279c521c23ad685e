#include "worker/models/head.h"

#include <ATen/ops/empty_like.h>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/model/families/causal_lm.h"
#include "common/model/model_spec.h"
#include "worker/models/functional.h"
#include "worker/models/primitives.h"

namespace harmony::worker {
namespace {

NormParam FinalNorm(const model::ModelConfig& config, const LayerParams& params) {
  const char* name = config.family == model::Family::kGpt2 ? "ln_f" : "norm";
  return functional::GetNorm(params, name, config.norm_epsilon);
}

// [V, C]: the head's own matrix, or the token table of a tied model.
Param Projection(const model::ModelConfig& config, const LayerParams& params) {
  if (!config.tie_word_embeddings) return params.Get("lm_head.weight");
  return params.Get(config.family == model::Family::kGpt2 ? "wte.weight" : "embed_tokens.weight");
}

absl::Status CheckLabels(absl::Span<const int32_t> labels, int64_t vocabulary) {
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < vocabulary) continue;
    return absl::OutOfRangeError(absl::StrCat("label ", labels[i], " at position ", i,
                                              " of the microbatch is outside the vocabulary of ",
                                              vocabulary));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<command::LossSlot> HeadForwardBackward(const Primitives& with,
                                                      const model::ModelConfig& config,
                                                      const LayerParams& params,
                                                      const at::Tensor& x, const at::Tensor& labels,
                                                      int64_t total_labels, at::Tensor& dx) {
  const int64_t rows = x.size(0);
  const NormParam norm = FinalNorm(config, params);
  const Param projection = Projection(config, params);
  TORCH_CHECK(projection.weight.defined() && projection.gradient.defined(),
              "the head's projection is not bound");
  const int64_t vocabulary = projection.weight.size(0);
  const at::Tensor seen = labels.cpu();  // themselves, on the CPU
  const absl::Span<const int32_t> numbers(seen.const_data_ptr<int32_t>(),
                                          static_cast<size_t>(rows));
  HARMONY_RETURN_IF_ERROR(CheckLabels(numbers, vocabulary));

  NormSaved saved;
  at::Tensor normed;  // [N, C]
  with.Norm(normed, x, norm, saved);
  at::Tensor dnormed = at::empty_like(normed);
  command::LossSlot loss;
  {
    LinearLoss linear;
    linear.x = std::move(normed);
    linear.weight = projection.weight;
    linear.labels = labels;
    linear.chunk_rows = model::HeadChunkRows(config);
    linear.scale = static_cast<float>(1.0 / static_cast<double>(total_labels));
    linear.x_gradient = dnormed;
    linear.weight_gradient = projection.gradient;
    loss.loss_sum = with.RunLinearLoss(linear);
  }
  dx.copy_(with.NormBackward(std::move(dnormed), x, norm, saved));

  loss.label_count = absl::c_count_if(numbers, [](int32_t label) { return label >= 0; });
  return loss;
}

}  // namespace harmony::worker
