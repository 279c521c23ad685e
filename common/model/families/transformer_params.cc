#include "common/model/families/transformer_params.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace harmony::model {
namespace {

// Appends tensors to one block, each with its prefix.
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

  ParamBlock Finish() { return std::move(block_); }

 private:
  void Add(absl::string_view name, std::vector<int64_t> shape, InitKind init, double std) {
    TensorSpec tensor;
    tensor.name = absl::StrCat(prefix_, name);
    tensor.weight_decay = shape.size() >= 2;
    tensor.shape = std::move(shape);
    tensor.init = init;
    tensor.init_std = std;
    AddTensor(block_, std::move(tensor));
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

}  // namespace

ParamBlock TokenTableParams(const ModelConfig& c) {
  const bool gpt2 = c.family == Family::kGpt2;
  BlockBuilder b("embed.tokens", 0, "", c.initializer_range);
  b.Weight(gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight",
           {c.vocab_size, c.hidden_size});
  ParamBlock block = b.Finish();
  if (c.tie_word_embeddings) block.tensors[0].aliases = {"lm_head.weight"};
  return block;
}

ParamBlock PositionTableParams(const ModelConfig& c) {
  BlockBuilder b("embed.positions", 0, "", c.initializer_range);
  b.Weight("transformer.wpe.weight", {c.max_position_embeddings, c.hidden_size});
  return b.Finish();
}

ParamBlock BlockParams(const ModelConfig& c, int layer) {
  return c.family == Family::kGpt2 ? Gpt2Block(c, layer) : LlamaBlock(c, layer);
}

ParamBlock HeadParams(const ModelConfig& c, int layer) {
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

}  // namespace harmony::model
