#include "common/model/model_spec.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace harmony {
namespace {

// Every tensor starts on a slot boundary of 64 bytes.
constexpr int64_t kElementAlignment = kSlotAlignment / 4;

int64_t AlignElements(int64_t n) {
  return (n + kElementAlignment - 1) / kElementAlignment * kElementAlignment;
}

// Appends tensors to one block.
class BlockBuilder {
 public:
  BlockBuilder(std::string name, int owner_layer, std::string prefix, double std)
      : prefix_(std::move(prefix)), std_(std) {
    block_.name = std::move(name);
    block_.owner_layer = owner_layer;
  }

  void Weight(absl::string_view name, std::vector<int64_t> shape, double std) {
    Add(name, std::move(shape), InitKind::kNormal, std);
  }
  void Weight(absl::string_view name, std::vector<int64_t> shape) {
    Weight(name, std::move(shape), std_);
  }
  void Ones(absl::string_view name, int64_t n) { Add(name, {n}, InitKind::kOnes, 0); }
  void Zeros(absl::string_view name, int64_t n) { Add(name, {n}, InitKind::kZeros, 0); }

  ParamBlock Finish() {
    block_.elements = AlignElements(block_.elements);
    return std::move(block_);
  }

 private:
  void Add(absl::string_view name, std::vector<int64_t> shape, InitKind init, double std) {
    TensorSpec tensor;
    tensor.name = absl::StrCat(prefix_, name);
    tensor.elements = 1;
    for (int64_t n : shape) tensor.elements *= n;
    tensor.weight_decay = shape.size() >= 2;
    tensor.shape = std::move(shape);
    tensor.offset = AlignElements(block_.elements);
    tensor.init = init;
    tensor.init_std = std;
    block_.elements = tensor.offset + tensor.elements;
    block_.tensors.push_back(std::move(tensor));
  }

  std::string prefix_;
  double std_;
  ParamBlock block_;
};

ParamBlock Gpt2Block(const ModelConfig& c, int layer) {
  const int64_t C = c.hidden_size, I = c.intermediate_size;
  // Residual projections start smaller, by the number of additions to the residual stream.
  const double residual_std = c.initializer_range / std::sqrt(2.0 * c.num_layers);
  BlockBuilder b(absl::StrCat("layer.", layer), layer,
                 absl::StrCat("transformer.h.", layer - 1, "."), c.initializer_range);
  b.Ones("ln_1.weight", C);
  b.Zeros("ln_1.bias", C);
  b.Weight("attn.c_attn.weight", {C, 3 * C});
  b.Zeros("attn.c_attn.bias", 3 * C);
  b.Weight("attn.c_proj.weight", {C, C}, residual_std);
  b.Zeros("attn.c_proj.bias", C);
  b.Ones("ln_2.weight", C);
  b.Zeros("ln_2.bias", C);
  b.Weight("mlp.c_fc.weight", {C, I});
  b.Zeros("mlp.c_fc.bias", I);
  b.Weight("mlp.c_proj.weight", {I, C}, residual_std);
  b.Zeros("mlp.c_proj.bias", C);
  return b.Finish();
}

ParamBlock LlamaBlock(const ModelConfig& c, int layer) {
  const int64_t C = c.hidden_size, I = c.intermediate_size, D = c.head_dim;
  const int64_t q = c.num_heads * D, kv = c.num_kv_heads * D;
  BlockBuilder b(absl::StrCat("layer.", layer), layer,
                 absl::StrCat("model.layers.", layer - 1, "."), c.initializer_range);
  b.Ones("input_layernorm.weight", C);
  // q, k, v follow each other, and so do gate and up: their products can run as one.
  b.Weight("self_attn.q_proj.weight", {q, C});
  b.Weight("self_attn.k_proj.weight", {kv, C});
  b.Weight("self_attn.v_proj.weight", {kv, C});
  if (c.qkv_bias) {
    b.Zeros("self_attn.q_proj.bias", q);
    b.Zeros("self_attn.k_proj.bias", kv);
    b.Zeros("self_attn.v_proj.bias", kv);
  }
  if (c.qk_norm) {
    b.Ones("self_attn.q_norm.weight", D);
    b.Ones("self_attn.k_norm.weight", D);
  }
  b.Weight("self_attn.o_proj.weight", {C, q});
  if (c.attention_output_bias) b.Zeros("self_attn.o_proj.bias", C);
  b.Ones("post_attention_layernorm.weight", C);
  b.Weight("mlp.gate_proj.weight", {I, C});
  b.Weight("mlp.up_proj.weight", {I, C});
  if (c.mlp_bias) {
    b.Zeros("mlp.gate_proj.bias", I);
    b.Zeros("mlp.up_proj.bias", I);
  }
  b.Weight("mlp.down_proj.weight", {C, I});
  if (c.mlp_bias) b.Zeros("mlp.down_proj.bias", C);
  return b.Finish();
}

ParamBlock HeadBlock(const ModelConfig& c, int layer) {
  const bool gpt2 = c.family == Family::kGpt2;
  BlockBuilder b("head", layer, "", c.initializer_range);
  if (gpt2) {
    b.Ones("transformer.ln_f.weight", c.hidden_size);
    b.Zeros("transformer.ln_f.bias", c.hidden_size);
  } else {
    b.Ones("model.norm.weight", c.hidden_size);
  }
  if (!c.tie_word_embeddings) b.Weight("lm_head.weight", {c.vocab_size, c.hidden_size});
  return b.Finish();
}

int AddBlock(ModelSpec& model, ParamBlock block) {
  model.blocks.push_back(std::move(block));
  return static_cast<int>(model.blocks.size()) - 1;
}

void AddUse(ModelSpec& model, LayerSpec& layer, int block, bool needed_in_backward) {
  const int use = static_cast<int>(model.uses.size());
  model.uses.push_back({layer.index, block, needed_in_backward});
  model.blocks[block].uses.push_back(use);
  layer.uses.push_back(use);
}

}  // namespace

int64_t ModelSpec::parameter_count() const {
  int64_t count = 0;
  for (const ParamBlock& block : blocks) {
    for (const TensorSpec& tensor : block.tensors) count += tensor.elements;
  }
  return count;
}

int64_t ModelSpec::tied_parameter_count() const {
  int64_t count = 0;
  for (const ParamBlock& block : blocks) {
    if (block.uses.size() < 2) continue;
    for (const TensorSpec& tensor : block.tensors) count += tensor.elements;
  }
  return count;
}

ModelSpec BuildModelSpec(const ModelConfig& config) {
  ModelSpec model;
  model.config = config;
  const bool gpt2 = config.family == Family::kGpt2;

  LayerSpec embedding{LayerKind::kEmbedding, 0, {}};
  BlockBuilder tokens("embed.tokens", 0, "", config.initializer_range);
  tokens.Weight(gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight",
                {config.vocab_size, config.hidden_size});
  const int token_block = AddBlock(model, tokens.Finish());
  AddUse(model, embedding, token_block, /*needed_in_backward=*/false);
  if (gpt2) {
    BlockBuilder positions("embed.positions", 0, "", config.initializer_range);
    positions.Weight("transformer.wpe.weight",
                     {config.max_position_embeddings, config.hidden_size});
    AddUse(model, embedding, AddBlock(model, positions.Finish()), /*needed_in_backward=*/false);
  }
  model.layers.push_back(std::move(embedding));

  for (int i = 1; i <= static_cast<int>(config.num_layers); ++i) {
    LayerSpec layer{LayerKind::kBlock, i, {}};
    const int block = AddBlock(model, gpt2 ? Gpt2Block(config, i) : LlamaBlock(config, i));
    AddUse(model, layer, block, /*needed_in_backward=*/true);
    model.layers.push_back(std::move(layer));
  }

  LayerSpec head{LayerKind::kHead, static_cast<int>(config.num_layers) + 1, {}};
  AddUse(model, head, AddBlock(model, HeadBlock(config, head.index)), /*needed_in_backward=*/true);
  if (config.tie_word_embeddings) AddUse(model, head, token_block, /*needed_in_backward=*/true);
  model.layers.push_back(std::move(head));
  return model;
}

const TensorSpec* FindTensor(const ParamBlock& block, absl::string_view suffix) {
  for (const TensorSpec& tensor : block.tensors) {
    if (tensor.name == suffix || absl::EndsWith(tensor.name, absl::StrCat(".", suffix))) {
      return &tensor;
    }
  }
  return nullptr;
}

}  // namespace harmony
