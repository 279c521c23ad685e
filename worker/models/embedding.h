#pragma once

// Layer 0: token ids -> hidden states.

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "worker/models/block.h"
#include "worker/models/layer_params.h"

namespace harmony::worker {

// Writes y [N, C] from ids [N]. OutOfRange names the position of a token id beyond the vocabulary.
absl::Status EmbeddingForward(const Primitives& with, const model::ModelConfig& config,
                              const LayerParams& params, BatchShape shape,
                              const at::Tensor& token_ids, at::Tensor& y);

// Adds dy [N, C] to the tables' gradients, but for the row of `padding_token` (-1: none). Needs the
// ids, not the tables. REQUIRES: ids that EmbeddingForward accepted.
void EmbeddingBackward(const Primitives& with, const model::ModelConfig& config,
                       const LayerParams& params, BatchShape shape, const at::Tensor& token_ids,
                       const at::Tensor& dy, int64_t padding_token);

}  // namespace harmony::worker
