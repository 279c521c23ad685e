#include "common/model/families/causal_lm.h"

#include <utility>

#include "common/model/families/transformer_costs.h"
#include "common/model/families/transformer_params.h"

namespace harmony::model {
namespace {

CheckpointNames NamesOf(const ModelConfig& config) {
  // Buffers that are no parameters: causal masks and rotary frequencies, computed anew by everyone.
  if (config.family == Family::kGpt2) return {"transformer.", {".attn.bias", ".attn.masked_bias"}};
  return {"model.", {".rotary_emb.inv_freq"}};
}

// The same block with weights of that type.
ParamBlock OfType(ParamBlock block, DType weights) {
  if (weights == DType::kF32) return block;
  ParamBlock typed;
  typed.name = std::move(block.name);
  typed.owner_layer = block.owner_layer;
  for (TensorSpec& tensor : block.tensors) {
    tensor.weight.dtype = weights;
    AddTensor(typed, std::move(tensor));
  }
  return typed;
}

}  // namespace

ModelSpec BuildModelSpec(const ModelConfig& config, int64_t sequence_length, DType activations) {
  enum Costs { kEmbedding, kBlock, kHead };
  const int head = static_cast<int>(config.num_layers) + 1;
  ModelSpec model;
  model.name = config.model_type;
  model.checkpoint_names = NamesOf(config);
  model.costs = {EmbeddingCost(config, sequence_length, activations),
                 BlockCost(config, sequence_length, activations),
                 HeadCost(config, sequence_length, activations)};
  model.labels_per_sample = sequence_length;
  const auto ids = [&](const char* name, int layer) {
    return BatchInput{{name, DType::kI32, {sequence_length}}, config.vocab_size, {layer}};
  };
  model.inputs = {ids("input_ids", 0), ids("labels", head)};
  const SampleTensor hidden{"hidden_states", activations, {sequence_length, config.hidden_size}};
  model.boundaries.assign(head + 2, {hidden});
  model.boundaries.front().clear();
  model.boundaries.back().clear();
  for (int i = 0; i <= head; ++i) {
    model.layers.push_back({i, i == 0 ? kEmbedding : i < head ? kBlock : kHead, {}});
  }

  const auto add = [&](ParamBlock block) {
    return AddBlock(model, OfType(std::move(block), activations));
  };
  const int tokens = add(TokenTableParams(config));
  AddReference(model, 0, tokens, /*needed_in_backward=*/false);
  if (config.family == Family::kGpt2) {
    AddReference(model, 0, add(PositionTableParams(config)),
                 /*needed_in_backward=*/false);
  }
  for (int i = 1; i < head; ++i) AddReference(model, i, add(BlockParams(config, i)));
  AddReference(model, head, add(HeadParams(config, head)));
  if (config.tie_word_embeddings) AddReference(model, head, tokens);
  return model;
}

}  // namespace harmony::model
