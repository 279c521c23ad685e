// gpt2: x + attention(LayerNorm(x)), then + MLP(LayerNorm(.)); projections are Conv1D ([in, out]).

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "worker/models/block.h"
#include "worker/models/functional.h"

namespace harmony {
namespace {

using functional::AttentionGradients;
using functional::AttentionSaved;
using functional::NormParam;
using functional::NormSaved;

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
  explicit Gpt2Block(const ModelConfig& config) : config_(config) {}

  std::unique_ptr<BlockSaved> Forward(const LayerParams& params, BatchShape shape,
                                      const at::Tensor& x, at::Tensor& y, bool keep) override {
    auto saved = std::make_unique<Gpt2Saved>();
    at::Tensor middle = keep ? at::empty_like(x) : y;
    ForwardAttention(params, shape, x, middle, keep, *saved);
    ForwardMlp(params, shape, middle, y, keep, *saved);
    if (!keep) return nullptr;
    saved->middle = middle;
    return saved;
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
  void ForwardAttention(const LayerParams& params, BatchShape shape, const at::Tensor& x,
                        at::Tensor& middle, bool keep, Gpt2Saved& saved) const {
    at::Tensor normed = functional::Norm(x, Norm1(params), &saved.norm1);
    at::Tensor qkv = functional::Linear(normed, params.Linear("attn.c_attn", true));
    if (keep) saved.normed1 = normed;
    normed.reset();
    AttentionSaved attention =
        functional::Attention(Part(qkv, shape, 0), Part(qkv, shape, 1), Part(qkv, shape, 2));
    if (keep) saved.qkv = qkv;
    qkv.reset();
    functional::LinearResidual(middle, x, attention.output, params.Linear("attn.c_proj", true));
    if (keep) saved.attention = attention;
  }

  // y = middle + projection(gelu(projection(norm(middle)))); y may be middle itself.
  void ForwardMlp(const LayerParams& params, BatchShape shape, const at::Tensor& middle,
                  at::Tensor& y, bool keep, Gpt2Saved& saved) const {
    at::Tensor normed = functional::Norm(middle, Norm2(params), &saved.norm2);
    at::Tensor activated = functional::Linear(normed, params.Linear("mlp.c_fc", true));
    if (keep) {
      saved.normed2 = normed;
      saved.preactivation = activated;
      activated = functional::Activate(activated, config_.activation);
      saved.activated = activated;
    } else {
      normed.reset();
      functional::ActivateInPlace(activated, config_.activation, shape.microbatch_rows());
    }
    if (y.defined())
      functional::LinearResidual(y, middle, activated, params.Linear("mlp.c_proj", true));
  }

  // dx = gradient of `middle`.
  void BackwardMlp(const LayerParams& params, const at::Tensor& dy, Gpt2Saved& saved,
                   at::Tensor& dx) const {
    const LinearParam down = params.Linear("mlp.c_proj", true);
    functional::LinearWeightGradient(dy, saved.activated, down);
    saved.activated.reset();
    at::Tensor dactivated = functional::LinearInputGradient(dy, down);
    functional::ActivateBackwardInPlace(dactivated, saved.preactivation, config_.activation);
    saved.preactivation.reset();
    const LinearParam up = params.Linear("mlp.c_fc", true);
    functional::LinearWeightGradient(dactivated, saved.normed2, up);
    saved.normed2.reset();
    at::Tensor dnormed = functional::LinearInputGradient(dactivated, up);
    dactivated.reset();
    at::Tensor dmiddle =
        functional::NormBackward(std::move(dnormed), saved.middle, Norm2(params), saved.norm2);
    saved.middle.reset();
    at::add_out(dx, dy, dmiddle);
  }

  // dx, the gradient of `middle`, becomes that of x.
  void BackwardAttention(const LayerParams& params, BatchShape shape, const at::Tensor& x,
                         Gpt2Saved& saved, at::Tensor& dx) const {
    const LinearParam projection = params.Linear("attn.c_proj", true);
    functional::LinearWeightGradient(dx, saved.attention.output, projection);
    at::Tensor doutput = functional::LinearInputGradient(dx, projection);
    AttentionGradients gradients =
        functional::AttentionBackward(doutput, Part(saved.qkv, shape, 0), Part(saved.qkv, shape, 1),
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
    functional::LinearWeightGradient(dqkv, saved.normed1, packed);
    saved.normed1.reset();
    at::Tensor dnormed = functional::LinearInputGradient(dqkv, packed);
    dqkv.reset();
    dx.add_(functional::NormBackward(std::move(dnormed), x, Norm1(params), saved.norm1));
  }

  const ModelConfig config_;
};

}  // namespace

std::unique_ptr<Block> MakeGpt2Block(const ModelConfig& config) {
  return std::make_unique<Gpt2Block>(config);
}

}  // namespace harmony
