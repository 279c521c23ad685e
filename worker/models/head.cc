#include "worker/models/head.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/families/causal_lm.h"
#include "common/model/model_spec.h"
#include "worker/models/functional.h"
#include "worker/models/gemm.h"
#include "worker/models/kernels.h"

namespace harmony::worker {
namespace {

using functional::NormParam;
using functional::NormSaved;

NormParam FinalNorm(const model::ModelConfig& config, const LayerParams& params) {
  const char* name = config.family == model::Family::kGpt2 ? "ln_f" : "norm";
  return functional::GetNorm(params, name, config.norm_epsilon);
}

// [V, C]: the head's own matrix, or the token table of a tied model.
Param Projection(const model::ModelConfig& config, const LayerParams& params) {
  if (!config.tie_word_embeddings) return params.Get("lm_head.weight");
  return params.Get(config.family == model::Family::kGpt2 ? "wte.weight" : "embed_tokens.weight");
}

absl::Status CheckLabels(const int32_t* labels, int64_t rows, int64_t vocabulary) {
  for (int64_t i = 0; i < rows; ++i) {
    if (labels[i] < vocabulary) continue;
    return absl::OutOfRangeError(absl::StrCat("label ", labels[i], " at position ", i,
                                              " of the microbatch is outside the vocabulary of ",
                                              vocabulary));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<command::LossSlot> HeadForwardBackward(const model::ModelConfig& config,
                                                      const LayerParams& params,
                                                      const at::Tensor& x, const int32_t* labels,
                                                      int64_t total_labels, at::Tensor& dx) {
  const int64_t rows = x.size(0);
  const NormParam norm = FinalNorm(config, params);
  const Param projection = Projection(config, params);
  TORCH_CHECK(projection.weight.defined() && projection.gradient.defined(),
              "the head's projection is not bound");
  const int64_t vocabulary = projection.weight.size(0);
  HARMONY_RETURN_IF_ERROR(CheckLabels(labels, rows, vocabulary));

  NormSaved saved;
  at::Tensor normed;  // [N, C]
  functional::Norm(normed, x, norm, saved);
  at::Tensor dnormed = at::empty_like(normed);
  const int64_t chunk_rows = std::min(rows, model::HeadChunkRows(config));
  at::Tensor buffer = at::empty({chunk_rows, vocabulary}, x.options());
  const at::Tensor weight_in_out = projection.weight.t();
  at::Tensor gradient = projection.gradient;
  std::vector<double> row_loss(rows);
  const float scale = static_cast<float>(1.0 / static_cast<double>(total_labels));
  for (int64_t begin = 0; begin < rows; begin += chunk_rows) {
    const int64_t count = std::min(chunk_rows, rows - begin);
    at::Tensor logits = buffer.narrow(0, 0, count);
    const at::Tensor chunk = normed.narrow(0, begin, count);
    at::Tensor dchunk = dnormed.narrow(0, begin, count);
    MatMul(logits, chunk, weight_in_out, /*accumulate=*/false);
    kernels::CrossEntropy(logits.mutable_data_ptr<float>(), labels + begin, count, vocabulary,
                          scale, row_loss.data() + begin);
    MatMul(gradient, logits.t(), chunk, /*accumulate=*/true);
    MatMul(dchunk, logits, projection.weight, /*accumulate=*/false);
  }
  buffer.reset();
  normed.reset();
  dx.copy_(functional::NormBackward(std::move(dnormed), x, norm, saved));

  command::LossSlot loss;
  for (int64_t i = 0; i < rows; ++i) {
    if (labels[i] < 0) continue;
    loss.loss_sum += row_loss[i];
    ++loss.label_count;
  }
  return loss;
}

}  // namespace harmony::worker
