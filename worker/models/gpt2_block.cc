// gpt2: x + attention(LayerNorm(x)), then + MLP(LayerNorm(.)); projections are Conv1D ([in, out]).

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "common/model/families/causal_lm.h"
#include "worker/models/block.h"
#include "worker/models/functional.h"

namespace harmony::worker {
namespace {

struct Gpt2Saved : BlockSaved {
  NormSaved norm1;
  at::Tensor normed1;        // [N, C]
  at::Tensor qkv;            // [N, 3C]
  AttentionSaved attention;  // output [N, C]
  at::Tensor middle;         // [N, C]; after the first residual
  NormSaved norm2;
  at::Tensor normed2;        // [N, C]
  at::Tensor preactivation;  // [N, 4C]
  at::Tensor activated;      // [N, 4C]
};

class Gpt2Block : public Block {
 public:
  Gpt2Block(const Primitives& with, const model::ModelConfig& config)
      : with_(with), config_(config) {}

  std::unique_ptr<BlockSaved> NewSaved(BatchShape shape, DType activations,
                                       DeviceAddress place) const override {
    auto saved = std::make_unique<Gpt2Saved>();
    if (!place) return saved;
    const int64_t rows = shape.rows(), hidden = config_.hidden_size;
    KeptPlace at(with_, place, activations);
    saved->norm1 = {at.TakeStatistic({rows, 1}), at.TakeStatistic({rows, 1})};
    saved->normed1 = at.Take({rows, hidden});
    saved->qkv = at.Take({rows, 3 * hidden});
    saved->attention.output = at.Take({rows, hidden});
    saved->attention.logsumexp = {
        at.TakeStatistic({shape.samples, shape.tokens, config_.num_heads}).transpose(1, 2)};
    saved->middle = at.Take({rows, hidden});
    saved->norm2 = {at.TakeStatistic({rows, 1}), at.TakeStatistic({rows, 1})};
    saved->normed2 = at.Take({rows, hidden});
    saved->preactivation = at.Take({rows, config_.intermediate_size});
    saved->activated = at.Take({rows, config_.intermediate_size});
    TORCH_CHECK(at.size() ==
                model::KeptBlockBytes(config_, activations, shape.samples, shape.tokens));
    return saved;
  }

  void Forward(const LayerParams& params, BatchShape shape, const at::Tensor& x, at::Tensor& y,
               BlockSaved* kept) override {
    Gpt2Saved own;
    Gpt2Saved& saved = kept != nullptr ? static_cast<Gpt2Saved&>(*kept) : own;
    if (kept == nullptr) saved.middle = y;
    if (!saved.middle.defined()) saved.middle = at::empty_like(x);
    ForwardAttention(params, shape, x, kept != nullptr, saved);
    ForwardMlp(params, shape, y, kept != nullptr, saved);
  }

  void Backward(const LayerParams& params, BatchShape shape, const at::Tensor& x,
                const at::Tensor& dy, std::unique_ptr<BlockSaved> saved, at::Tensor& dx) override {
    auto& kept = static_cast<Gpt2Saved&>(*saved);
    BackwardMlp(params, dy, kept, dx);
    BackwardAttention(params, shape, x, kept, dx);
  }

 private:
  NormParam Norm1(const LayerParams& p) const {
    return functional::GetNorm(p, "ln_1", config_.norm_epsilon);
  }
  NormParam Norm2(const LayerParams& p) const {
    return functional::GetNorm(p, "ln_2", config_.norm_epsilon);
  }

  // q, k or v of a packed [N, 3C], as [b, H, T, D].
  at::Tensor Part(const at::Tensor& qkv, BatchShape shape, int part) const {
    const int64_t heads = config_.num_heads;
    const int64_t head_dim = config_.head_dim;
    return qkv.view({shape.samples, shape.tokens, 3, heads, head_dim})
        .select(2, part)
        .transpose(1, 2);
  }

  // middle = x + projection(attention(norm(x)))
  void ForwardAttention(const LayerParams& params, BatchShape shape, const at::Tensor& x, bool keep,
                        Gpt2Saved& saved) const {
    with_.Norm(saved.normed1, x, Norm1(params), saved.norm1);
    functional::Linear(with_, saved.qkv, saved.normed1, params.Linear("attn.c_attn", true));
    if (!keep) saved.normed1.reset();
    with_.Attention(saved.attention, Part(saved.qkv, shape, 0), Part(saved.qkv, shape, 1),
                    Part(saved.qkv, shape, 2));
    if (!keep) saved.qkv.reset();
    functional::LinearResidual(with_, saved.middle, x, saved.attention.output,
                               params.Linear("attn.c_proj", true));
    if (!keep) saved.attention = AttentionSaved();
  }

  // y = middle + projection(gelu(projection(norm(middle)))); y may be middle itself.
  void ForwardMlp(const LayerParams& params, BatchShape shape, at::Tensor& y, bool keep,
                  Gpt2Saved& saved) const {
    with_.Norm(saved.normed2, saved.middle, Norm2(params), saved.norm2);
    const LinearParam up = params.Linear("mlp.c_fc", true);
    if (keep) {
      functional::Linear(with_, saved.preactivation, saved.normed2, up);
      functional::Activate(saved.activated, saved.preactivation, config_.activation);
    } else {
      functional::Linear(with_, saved.activated, saved.normed2, up);
      saved.normed2.reset();
      functional::ActivateInPlace(saved.activated, config_.activation, shape.microbatch_rows());
    }
    if (y.defined())
      functional::LinearResidual(with_, y, saved.middle, saved.activated,
                                 params.Linear("mlp.c_proj", true));
  }

  // dx = gradient of `middle`.
  void BackwardMlp(const LayerParams& params, const at::Tensor& dy, Gpt2Saved& saved,
                   at::Tensor& dx) const {
    const LinearParam down = params.Linear("mlp.c_proj", true);
    functional::LinearWeightGradient(with_, dy, saved.activated, down);
    saved.activated.reset();
    at::Tensor dactivated = functional::LinearInputGradient(with_, dy, down);
    functional::ActivateBackwardInPlace(dactivated, saved.preactivation, config_.activation);
    saved.preactivation.reset();
    const LinearParam up = params.Linear("mlp.c_fc", true);
    functional::LinearWeightGradient(with_, dactivated, saved.normed2, up);
    saved.normed2.reset();
    at::Tensor dnormed = functional::LinearInputGradient(with_, dactivated, up);
    dactivated.reset();
    at::Tensor dmiddle =
        with_.NormBackward(std::move(dnormed), saved.middle, Norm2(params), saved.norm2);
    saved.middle.reset();
    at::add_out(dx, dy, dmiddle);
  }

  // dx, the gradient of `middle`, becomes that of x.
  void BackwardAttention(const LayerParams& params, BatchShape shape, const at::Tensor& x,
                         Gpt2Saved& saved, at::Tensor& dx) const {
    const LinearParam projection = params.Linear("attn.c_proj", true);
    functional::LinearWeightGradient(with_, dx, saved.attention.output, projection);
    at::Tensor doutput = functional::LinearInputGradient(with_, dx, projection);
    AttentionGradients gradients =
        with_.AttentionBackward(doutput, Part(saved.qkv, shape, 0), Part(saved.qkv, shape, 1),
                                Part(saved.qkv, shape, 2), saved.attention);
    doutput.reset();
    saved.attention = AttentionSaved();
    at::Tensor dqkv = saved.qkv;  // its values are not needed any more
    saved.qkv.reset();
    Part(dqkv, shape, 0).copy_(gradients.dq);
    Part(dqkv, shape, 1).copy_(gradients.dk);
    Part(dqkv, shape, 2).copy_(gradients.dv);
    gradients = AttentionGradients();
    const LinearParam packed = params.Linear("attn.c_attn", true);
    functional::LinearWeightGradient(with_, dqkv, saved.normed1, packed);
    saved.normed1.reset();
    at::Tensor dnormed = functional::LinearInputGradient(with_, dqkv, packed);
    dqkv.reset();
    dx.add_(with_.NormBackward(std::move(dnormed), x, Norm1(params), saved.norm1));
  }

  const Primitives& with_;
  const model::ModelConfig config_;
};

}  // namespace

std::unique_ptr<Block> MakeGpt2Block(const Primitives& with, const model::ModelConfig& config) {
  return std::make_unique<Gpt2Block>(with, config);
}

}  // namespace harmony::worker
