#pragma once

// The built-in families (gpt2; llama, mistral, qwen2, qwen3) as a source of model descriptions.
// PURE.
//
//   layer 0            the embedding        (token ids -> hidden states)
//   layers 1 .. n      transformer blocks   (hidden states -> hidden states)
//   layer n+1          the head: final norm, projection to the vocabulary, cross entropy
//
// Batch inputs are token ids, which the embedding reads, and labels, which skip to the head; both
// int32 [T]. Each boundary from 1 on is crossed by the hidden states, [T, C]. These, all
// activations and the weights that layers read are fp32 or bf16; statistics of norms and of
// attention, gradients of parameters and the loss are fp32 in any case.

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/model_config.h"
#include "common/model/model_spec.h"

namespace harmony::model {

// Numbers of the batch inputs.
inline constexpr int kTokenIds = 0, kLabels = 1;

// For a config that ParseModelConfig returned, trained on sequences of that many tokens. Use order,
// as the layers' code expects it:
//   embedding: [tokens] (llama family) or [tokens, positions] (gpt2)
//   block:     [its one block]
//   head:      [norm and lm_head] when untied, [norm, tokens] when tied
// The token table of a tied model is a block that both use.
ModelSpec BuildModelSpec(const ModelConfig& config, int64_t sequence_length,
                         DType activations = DType::kF32);

// Rows (tokens) of logits that the head computes at a time; a function of the vocabulary only, so
// that results depend on neither cap nor batch. About 64 MiB of logits.
int64_t HeadChunkRows(const ModelConfig& config);

// What a block keeps in its place: KeptTensorBytes of its cost.
Bytes KeptBlockBytes(const ModelConfig& config, DType activations, int64_t samples, int64_t tokens);

}  // namespace harmony::model
