// The llama family: x + attention(RMSNorm(x)), then + SwiGLU(RMSNorm(.)); projections are [out,
// in]. Rotary embedding on queries and keys, grouped-query attention, optional biases and (qwen3)
// norms of queries and keys.

#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>

#include "common/model/families/causal_lm.h"
#include "worker/models/block.h"
#include "worker/models/functional.h"
#include "worker/models/rope.h"

namespace harmony::worker {
namespace {

// Queries, keys or values of one block.
struct Heads {
  at::Tensor raw;   // [N, heads * D], before the norm of queries and keys, if there is one
  NormSaved norm;   // with such a norm
  at::Tensor rows;  // [N, heads * D], normed and rotated
};

struct LlamaSaved : BlockSaved {
  NormSaved norm1;
  at::Tensor normed1;  // [N, C]
  Heads q, k, v;
  AttentionSaved attention;  // output [N, H * D]
  at::Tensor middle;         // [N, C]; after the first residual
  NormSaved norm2;
  at::Tensor normed2;   // [N, C]
  at::Tensor gate, up;  // [N, I]; gate before its activation
  at::Tensor gated;     // [N, I]; activation(gate) * up
};

class LlamaBlock : public Block {
 public:
  LlamaBlock(const Primitives& with, const model::ModelConfig& config)
      : with_(with), config_(config) {}

  std::unique_ptr<BlockSaved> NewSaved(BatchShape shape, DType activations,
                                       DeviceAddress place) const override {
    auto saved = std::make_unique<LlamaSaved>();
    if (!place) return saved;
    const int64_t rows = shape.rows(), hidden = config_.hidden_size;
    const int64_t heads = config_.num_heads, kv_heads = config_.num_kv_heads;
    KeptPlace at(with_, place, activations);
    saved->norm1.rstd = at.TakeStatistic({rows});
    saved->normed1 = at.Take({rows, hidden});
    saved->q.rows = at.Take({rows, heads * config_.head_dim});
    saved->k.rows = at.Take({rows, kv_heads * config_.head_dim});
    saved->v.rows = at.Take({rows, kv_heads * config_.head_dim});
    if (config_.qk_norm) {
      saved->q.raw = at.Take({rows, heads * config_.head_dim});
      saved->q.norm.rstd = at.TakeStatistic({rows * heads});
      saved->k.raw = at.Take({rows, kv_heads * config_.head_dim});
      saved->k.norm.rstd = at.TakeStatistic({rows * kv_heads});
    }
    saved->attention.output = at.Take({rows, heads * config_.head_dim});
    for (int64_t pass = 0; pass < heads / kv_heads; ++pass) {
      saved->attention.logsumexp.push_back(
          at.TakeStatistic({shape.samples, shape.tokens, kv_heads}).transpose(1, 2));
    }
    saved->middle = at.Take({rows, hidden});
    saved->norm2.rstd = at.TakeStatistic({rows});
    saved->normed2 = at.Take({rows, hidden});
    saved->gate = at.Take({rows, config_.intermediate_size});
    saved->up = at.Take({rows, config_.intermediate_size});
    saved->gated = at.Take({rows, config_.intermediate_size});
    TORCH_CHECK(at.size() ==
                model::KeptBlockBytes(config_, activations, shape.samples, shape.tokens));
    return saved;
  }

  void Forward(const LayerParams& params, BatchShape shape, const at::Tensor& x, at::Tensor& y,
               BlockSaved* kept) override {
    PrepareRope(shape.tokens);
    LlamaSaved own;
    LlamaSaved& saved = kept != nullptr ? static_cast<LlamaSaved&>(*kept) : own;
    if (kept == nullptr) saved.middle = y;
    if (!saved.middle.defined()) saved.middle = at::empty_like(x);
    ForwardAttention(params, shape, x, kept != nullptr, saved);
    ForwardMlp(params, shape, y, kept != nullptr, saved);
  }

  void Backward(const LayerParams& params, BatchShape shape, const at::Tensor& x,
                const at::Tensor& dy, std::unique_ptr<BlockSaved> saved, at::Tensor& dx) override {
    PrepareRope(shape.tokens);
    auto& kept = static_cast<LlamaSaved&>(*saved);
    BackwardMlp(params, dy, kept, dx);
    BackwardAttention(params, shape, x, kept, dx);
  }

 private:
  void PrepareRope(int64_t tokens) {
    if (rope_.tokens != tokens) rope_ = MakeRopeTables(config_.rope, config_.head_dim, tokens);
  }

  NormParam Norm(const LayerParams& params, absl::string_view name) const {
    return functional::GetNorm(params, name, config_.norm_epsilon);
  }

  // Projects to queries or keys (norm_name: their norm, used with qk_norm) and rotates them.
  void ProjectRotated(const LayerParams& params, BatchShape shape, const at::Tensor& x,
                      absl::string_view projection, absl::string_view norm_name, bool keep,
                      Heads& heads) const {
    const LinearParam linear = params.Linear(projection, false);
    if (!config_.qk_norm) {
      functional::Linear(with_, heads.rows, x, linear);
    } else {
      functional::Linear(with_, heads.raw, x, linear);
      at::Tensor normed;  // a row for each head
      if (heads.rows.defined()) normed = heads.rows.view({-1, config_.head_dim});
      with_.Norm(normed, heads.raw.view({-1, config_.head_dim}), Norm(params, norm_name),
                 heads.norm);
      heads.rows = normed.view_as(heads.raw);
      if (!keep) heads.raw.reset();
    }
    with_.Rotate(heads.rows, rope_, shape, false);
  }

  // [N, heads * D] -> [b, heads, T, D], a view.
  at::Tensor AsHeads(const at::Tensor& rows, BatchShape shape) const {
    return rows.view({shape.samples, shape.tokens, -1, config_.head_dim}).transpose(1, 2);
  }

  at::Tensor FromHeads(const at::Tensor& heads, BatchShape shape) const {
    return heads.transpose(1, 2).reshape({shape.rows(), -1});
  }

  void ForwardAttention(const LayerParams& params, BatchShape shape, const at::Tensor& x, bool keep,
                        LlamaSaved& saved) const {
    with_.Norm(saved.normed1, x, Norm(params, "input_layernorm"), saved.norm1);
    ProjectRotated(params, shape, saved.normed1, "self_attn.q_proj", "self_attn.q_norm", keep,
                   saved.q);
    ProjectRotated(params, shape, saved.normed1, "self_attn.k_proj", "self_attn.k_norm", keep,
                   saved.k);
    functional::Linear(with_, saved.v.rows, saved.normed1,
                       params.Linear("self_attn.v_proj", false));
    if (!keep) saved.normed1.reset();
    with_.Attention(saved.attention, AsHeads(saved.q.rows, shape), AsHeads(saved.k.rows, shape),
                    AsHeads(saved.v.rows, shape));
    if (!keep) saved.q = saved.k = saved.v = Heads();
    functional::LinearResidual(with_, saved.middle, x, saved.attention.output,
                               params.Linear("self_attn.o_proj", false));
    if (!keep) saved.attention = AttentionSaved();
  }

  void ForwardMlp(const LayerParams& params, BatchShape shape, at::Tensor& y, bool keep,
                  LlamaSaved& saved) const {
    with_.Norm(saved.normed2, saved.middle, Norm(params, "post_attention_layernorm"), saved.norm2);
    functional::Linear(with_, saved.gate, saved.normed2, params.Linear("mlp.gate_proj", false));
    functional::Linear(with_, saved.up, saved.normed2, params.Linear("mlp.up_proj", false));
    if (!keep) {
      saved.normed2.reset();
      saved.gated = saved.gate;
    }
    with_.Gated(saved.gated, saved.gate, saved.up, config_.activation, shape.microbatch_rows());
    if (!keep) {
      saved.gate.reset();
      saved.up.reset();
    }
    if (y.defined())
      functional::LinearResidual(with_, y, saved.middle, saved.gated,
                                 params.Linear("mlp.down_proj", false));
  }

  void BackwardMlp(const LayerParams& params, const at::Tensor& dy, LlamaSaved& saved,
                   at::Tensor& dx) const {
    const LinearParam down = params.Linear("mlp.down_proj", false);
    functional::LinearWeightGradient(with_, dy, saved.gated, down);
    at::Tensor dgate = functional::LinearInputGradient(with_, dy, down);  // of the product yet
    at::Tensor dup = saved.gated;  // its values are not needed any more
    saved.gated.reset();
    with_.GatedBackward(dgate, dup, saved.gate, saved.up, config_.activation);
    saved.gate.reset();
    saved.up.reset();

    const LinearParam gate = params.Linear("mlp.gate_proj", false);
    const LinearParam up = params.Linear("mlp.up_proj", false);
    functional::LinearWeightGradient(with_, dgate, saved.normed2, gate);
    functional::LinearWeightGradient(with_, dup, saved.normed2, up);
    saved.normed2.reset();
    at::Tensor dnormed = functional::LinearInputGradient(with_, dgate, gate);
    dgate.reset();
    functional::LinearInputGradientAdd(with_, dnormed, dup, up);
    dup.reset();
    at::Tensor dmiddle = with_.NormBackward(std::move(dnormed), saved.middle,
                                            Norm(params, "post_attention_layernorm"), saved.norm2);
    saved.middle.reset();
    at::add_out(dx, dy, dmiddle);
  }

  // From the gradient of rotated queries or keys to that of their projection's output.
  at::Tensor UnprojectRotated(const LayerParams& params, BatchShape shape, at::Tensor rows,
                              absl::string_view norm_name, Heads& heads) const {
    with_.Rotate(rows, rope_, shape, true);
    if (!config_.qk_norm) return rows;
    at::Tensor result = with_.NormBackward(rows.view({-1, config_.head_dim}),
                                           heads.raw.view({-1, config_.head_dim}),
                                           Norm(params, norm_name), heads.norm);
    heads = Heads();
    return result.view_as(rows);
  }

  void BackwardAttention(const LayerParams& params, BatchShape shape, const at::Tensor& x,
                         LlamaSaved& saved, at::Tensor& dx) const {
    const LinearParam output = params.Linear("self_attn.o_proj", false);
    functional::LinearWeightGradient(with_, dx, saved.attention.output, output);
    at::Tensor doutput = functional::LinearInputGradient(with_, dx, output);
    AttentionGradients gradients =
        with_.AttentionBackward(doutput, AsHeads(saved.q.rows, shape), AsHeads(saved.k.rows, shape),
                                AsHeads(saved.v.rows, shape), saved.attention);
    doutput.reset();
    saved.attention = AttentionSaved();
    saved.q.rows.reset();
    saved.k.rows.reset();
    saved.v.rows.reset();
    at::Tensor dq = FromHeads(gradients.dq, shape);
    at::Tensor dk = FromHeads(gradients.dk, shape);
    at::Tensor dv = FromHeads(gradients.dv, shape);
    gradients = AttentionGradients();
    dq = UnprojectRotated(params, shape, std::move(dq), "self_attn.q_norm", saved.q);
    dk = UnprojectRotated(params, shape, std::move(dk), "self_attn.k_norm", saved.k);

    const LinearParam query = params.Linear("self_attn.q_proj", false);
    const LinearParam key = params.Linear("self_attn.k_proj", false);
    const LinearParam value = params.Linear("self_attn.v_proj", false);
    functional::LinearWeightGradient(with_, dq, saved.normed1, query);
    functional::LinearWeightGradient(with_, dk, saved.normed1, key);
    functional::LinearWeightGradient(with_, dv, saved.normed1, value);
    saved.normed1.reset();
    at::Tensor dnormed = functional::LinearInputGradient(with_, dq, query);
    functional::LinearInputGradientAdd(with_, dnormed, dk, key);
    functional::LinearInputGradientAdd(with_, dnormed, dv, value);
    dx.add_(
        with_.NormBackward(std::move(dnormed), x, Norm(params, "input_layernorm"), saved.norm1));
  }

  const Primitives& with_;
  const model::ModelConfig config_;
  RopeTables rope_;  // for the sequence length seen last
};

}  // namespace

std::unique_ptr<Block> MakeLlamaBlock(const Primitives& with, const model::ModelConfig& config) {
  return std::make_unique<LlamaBlock>(with, config);
}

}  // namespace harmony::worker
