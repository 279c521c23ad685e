// What fp32 copies are needed for exists for a stretch of rows at a time, so that a task needs
// about the workspace that the CPU's kernels need.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "worker/models/fused_attention.h"
#include "worker/models/gemm.h"
#include "worker/models/heads.h"
#include "worker/models/primitives.h"

namespace harmony::worker {
namespace {

// Numbers of a stretch, but for rows that are longer alone.
constexpr int64_t kStretch = int64_t{1} << 20;

// Calls run(begin, count) for stretches of rows that are so wide.
void ForRows(int64_t rows, int64_t width, absl::FunctionRef<void(int64_t, int64_t)> run) {
  const int64_t most = std::max<int64_t>(kStretch / std::max<int64_t>(width, 1), 1);
  for (int64_t begin = 0; begin < rows; begin += most) run(begin, std::min(most, rows - begin));
}

at::Tensor Wide(const at::Tensor& tensor) { return tensor.to(at::kFloat); }

class Portable : public Primitives {
 public:
  explicit Portable(LayerTarget target) : Primitives(target) {}

  void MatMul(at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
              bool accumulate) const override;
  void AddSumOfRows(at::Tensor& sums, const at::Tensor& dy) const override;
  void Norm(at::Tensor& y, const at::Tensor& x, const NormParam& param,
            NormSaved& saved) const override;
  at::Tensor NormBackward(at::Tensor dy, const at::Tensor& x, const NormParam& param,
                          const NormSaved& saved) const override;
  void Attention(AttentionSaved& saved, const at::Tensor& q, const at::Tensor& k,
                 const at::Tensor& v) const override;
  AttentionGradients AttentionBackward(const at::Tensor& dy, const at::Tensor& q,
                                       const at::Tensor& k, const at::Tensor& v,
                                       const AttentionSaved& saved) const override;
  void Rotate(at::Tensor& rows, const RopeTables& tables, BatchShape shape,
              bool inverse) const override;
  int64_t GatherRows(const at::Tensor& table, const at::Tensor& ids, at::Tensor& y) const override;
  void ScatterAddRows(at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& dy,
                      int64_t skip) const override;
  void AddPositions(at::Tensor& y, const at::Tensor& positions, BatchShape shape) const override;
  void SumPositions(at::Tensor& gradient, const at::Tensor& dy, BatchShape shape) const override;
  double RunLinearLoss(LinearLoss& loss) const override;

 private:
  // Of the logits in place: the gradients; returns the sum of the losses, fp64, on the device.
  at::Tensor CrossEntropy(const at::Tensor& logits, const at::Tensor& labels, float scale) const;
};

void Portable::MatMul(at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
                      bool accumulate) const {
  if (c.scalar_type() != a.scalar_type() && !c.is_cuda()) {
    worker::MatMul(c, a, b, accumulate);  // there is no such product in LibTorch
  } else if (c.scalar_type() != a.scalar_type()) {
    at::addmm_out(c, c, a, b, c.scalar_type());
  } else if (accumulate) {
    c.addmm_(a, b);
  } else {
    at::mm_out(c, a, b);
  }
}

void Portable::AddSumOfRows(at::Tensor& sums, const at::Tensor& dy) const {
  ForRows(dy.size(0), dy.size(1), [&](int64_t begin, int64_t count) {
    sums.add_(Wide(dy.narrow(0, begin, count)).sum(0));
  });
}

void Portable::Norm(at::Tensor& y, const at::Tensor& x, const NormParam& param,
                    NormSaved& saved) const {
  const bool centred = param.bias.weight.defined();
  const int64_t width = x.size(-1), rows = x.numel() / width;
  const at::TensorOptions statistics = x.options().dtype(at::kFloat);
  if (!y.defined()) y = at::empty_like(x);
  if (centred && !saved.mean.defined()) saved.mean = at::empty({rows, 1}, statistics);
  if (!saved.rstd.defined()) {
    saved.rstd = at::empty(centred ? at::IntArrayRef{rows, 1} : at::IntArrayRef{rows}, statistics);
  }
  const at::Tensor weight = Wide(param.weight.weight);
  const at::Tensor from = x.view({rows, width}), to = y.view({rows, width});
  const at::Tensor rstds = saved.rstd.view({rows, 1});
  ForRows(rows, width, [&](int64_t begin, int64_t count) {
    at::Tensor part = at::empty({count, width}, statistics).copy_(from.narrow(0, begin, count));
    if (centred) {
      at::Tensor mean = saved.mean.narrow(0, begin, count);
      mean.copy_(part.mean(-1, /*keepdim=*/true));
      part.sub_(mean);
    }
    at::Tensor rstd = rstds.narrow(0, begin, count);
    rstd.copy_(part.square().mean(-1, /*keepdim=*/true).add_(param.epsilon).rsqrt_());
    part.mul_(rstd).mul_(weight);
    if (centred) part.add_(Wide(param.bias.weight));
    to.narrow(0, begin, count).copy_(part);
  });
}

at::Tensor Portable::NormBackward(at::Tensor dy, const at::Tensor& x, const NormParam& param,
                                  const NormSaved& saved) const {
  const bool centred = param.bias.weight.defined();
  const int64_t width = x.size(-1), rows = x.numel() / width;
  at::Tensor weight_gradient = param.weight.gradient, bias_gradient = param.bias.gradient;
  const at::Tensor weight = Wide(param.weight.weight);
  const at::Tensor from = x.view({rows, width}), gradients = dy.view({rows, width});
  ForRows(rows, width, [&](int64_t begin, int64_t count) {
    const at::Tensor rstd = saved.rstd.view({rows, 1}).narrow(0, begin, count);
    const at::TensorOptions wide = rstd.options();
    at::Tensor normed = at::empty({count, width}, wide).copy_(from.narrow(0, begin, count));
    if (centred) normed.sub_(saved.mean.view({rows, 1}).narrow(0, begin, count));
    normed.mul_(rstd);
    at::Tensor gradient = at::empty({count, width}, wide).copy_(gradients.narrow(0, begin, count));
    weight_gradient.add_(gradient.mul(normed).sum(0));
    if (centred) bias_gradient.add_(gradient.sum(0));
    gradient.mul_(weight);
    const at::Tensor along = gradient.mul(normed).mean(-1, /*keepdim=*/true);
    if (centred) gradient.sub_(gradient.mean(-1, /*keepdim=*/true));
    gradient.sub_(normed.mul_(along)).mul_(rstd);
    gradients.narrow(0, begin, count).copy_(gradient);
  });
  return dy;
}

// Where they are kept, the logarithms of the heads at one position of their groups are one tensor.
void KeepLogarithms(AttentionSaved& saved, const at::Tensor& logarithms) {
  if (saved.logsumexp.empty()) {
    saved.logsumexp = {logarithms};
    return;
  }
  const auto groups = static_cast<int64_t>(saved.logsumexp.size());
  for (int64_t r = 0; r < groups; ++r) {
    saved.logsumexp[static_cast<size_t>(r)].copy_(
        logarithms.unflatten(1, {-1, groups}).select(2, r));
  }
}

at::Tensor KeptLogarithms(const AttentionSaved& saved) {
  if (saved.logsumexp.size() == 1) return saved.logsumexp.front();
  return at::stack(saved.logsumexp, 2).flatten(1, 2);
}

void Portable::Attention(AttentionSaved& saved, const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v) const {
  const auto [output, logarithms] =
      DeviceAttention(q, k, v, /*causal=*/true, std::nullopt, std::nullopt);
  KeepLogarithms(saved, logarithms);
  if (saved.output.defined()) {
    RowsAsHeads(saved.output, q).copy_(output);
  } else {
    saved.output = HeadsAsRows(output);
  }
}

AttentionGradients Portable::AttentionBackward(const at::Tensor& dy, const at::Tensor& q,
                                               const at::Tensor& k, const at::Tensor& v,
                                               const AttentionSaved& saved) const {
  auto [dq, dk, dv] = DeviceAttentionBackward(RowsAsHeads(dy, q), q, k, v,
                                              RowsAsHeads(saved.output, q), KeptLogarithms(saved),
                                              /*causal=*/true, std::nullopt, std::nullopt);
  return {dq, dk, dv};
}

void Portable::Rotate(at::Tensor& rows, const RopeTables& tables, BatchShape shape,
                      bool inverse) const {
  const int64_t half = tables.head_dim / 2;
  const at::TensorOptions wide = rows.options().dtype(at::kFloat);
  // The angles are made anew: to keep them would take memory that belongs to nobody's workspace.
  const at::Tensor frequencies =
      at::from_blob(const_cast<float*>(tables.frequencies.data()), {half}, at::kFloat).to(device_);
  const at::Tensor angles =
      at::arange(shape.tokens, wide).unsqueeze(1).mul(frequencies.unsqueeze(0));
  const at::Tensor cosines = angles.cos().unsqueeze(1), sines = angles.sin().unsqueeze(1);
  const at::Tensor heads = rows.view({shape.samples, shape.tokens, -1, 2, half});
  for (int64_t sample = 0; sample < shape.samples; ++sample) {
    ForRows(shape.tokens, rows.size(1), [&](int64_t begin, int64_t count) {
      const at::Tensor part = heads.select(0, sample).narrow(0, begin, count);
      const at::Tensor first = part.select(2, 0), second = part.select(2, 1);
      const at::Tensor cosine = cosines.narrow(0, begin, count);
      const at::Tensor sine =
          inverse ? sines.narrow(0, begin, count).neg() : sines.narrow(0, begin, count);
      const at::Tensor x = Wide(first), y = Wide(second);
      const at::Tensor turned = x.mul(cosine).sub_(y.mul(sine));
      second.copy_(y.mul(cosine).add_(x.mul(sine)));
      first.copy_(turned);
    });
  }
}

int64_t Portable::GatherRows(const at::Tensor& table, const at::Tensor& ids, at::Tensor& y) const {
  const at::Tensor outside = ids.lt(0).logical_or_(ids.ge(table.size(0)));
  if (outside.any().item<bool>()) return outside.to(at::kByte).argmax().item<int64_t>();
  at::index_select_out(y, table, 0, ids);
  return -1;
}

void Portable::ScatterAddRows(at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& dy,
                              int64_t skip) const {
  ForRows(dy.size(0), dy.size(1), [&](int64_t begin, int64_t count) {
    const at::Tensor some = ids.narrow(0, begin, count);
    at::Tensor added = Wide(dy.narrow(0, begin, count));
    if (skip >= 0) added = added.masked_fill(some.eq(skip).unsqueeze(1), 0);
    // On a GPU this sorts the ids, and adds up those of a row in their order.
    gradient.index_put_({some.to(at::kLong)}, added, /*accumulate=*/true);
  });
}

void Portable::AddPositions(at::Tensor& y, const at::Tensor& positions, BatchShape shape) const {
  y.view({shape.samples, shape.tokens, -1}).add_(positions.narrow(0, 0, shape.tokens));
}

void Portable::SumPositions(at::Tensor& gradient, const at::Tensor& dy, BatchShape shape) const {
  at::Tensor used = gradient.narrow(0, 0, shape.tokens);
  for (int64_t sample = 0; sample < shape.samples; ++sample) {
    ForRows(shape.tokens, dy.size(1), [&](int64_t begin, int64_t count) {
      used.narrow(0, begin, count).add_(Wide(dy.narrow(0, sample * shape.tokens + begin, count)));
    });
  }
}

at::Tensor Portable::CrossEntropy(const at::Tensor& logits, const at::Tensor& labels,
                                  float scale) const {
  const at::Tensor ignored = labels.lt(0).unsqueeze(1);
  const at::Tensor chosen = labels.clamp_min(0).to(at::kLong).unsqueeze(1);
  at::Tensor loss = at::zeros({}, logits.options().dtype(at::kDouble));
  ForRows(logits.size(0), logits.size(1), [&](int64_t begin, int64_t count) {
    const at::Tensor place = logits.narrow(0, begin, count);
    const at::Tensor label = chosen.narrow(0, begin, count), none = ignored.narrow(0, begin, count);
    at::Tensor part = Wide(place);
    part.sub_(part.amax(-1, /*keepdim=*/true));
    const at::Tensor picked = part.gather(1, label);
    part.exp_();
    const at::Tensor sum = part.sum(-1, /*keepdim=*/true);
    loss.add_(sum.log().sub_(picked).masked_fill_(none, 0).to(at::kDouble).sum());
    part.div_(sum);
    part.scatter_(1, label, part.gather(1, label).sub_(1));
    part.mul_(scale).masked_fill_(none, 0);
    if (!part.is_same(place)) place.copy_(part);
  });
  return loss;
}

double Portable::RunLinearLoss(LinearLoss& loss) const {
  TORCH_CHECK(!loss.bias.defined() && !loss.sets_weight_gradient, "no layer of ours has that");
  const int64_t rows = loss.x.size(0), classes = loss.weight.size(0);
  const int64_t chunk_rows = std::min(rows, loss.chunk_rows);
  at::Tensor buffer = at::empty({chunk_rows, classes}, loss.x.options());
  at::Tensor sum = at::zeros({}, loss.x.options().dtype(at::kDouble));
  for (int64_t begin = 0; begin < rows; begin += chunk_rows) {
    const int64_t count = std::min(chunk_rows, rows - begin);
    at::Tensor logits = buffer.narrow(0, 0, count);
    const at::Tensor chunk = loss.x.narrow(0, begin, count);
    at::Tensor chunk_gradient = loss.x_gradient.narrow(0, begin, count);
    MatMul(logits, chunk, loss.weight.t(), /*accumulate=*/false);
    sum.add_(CrossEntropy(logits, loss.labels.narrow(0, begin, count), loss.scale));
    MatMul(loss.weight_gradient, logits.t(), chunk, /*accumulate=*/true);
    MatMul(chunk_gradient, logits, loss.weight, /*accumulate=*/false);
  }
  return sum.item<double>();
}

}  // namespace

std::unique_ptr<const Primitives> MakePortablePrimitives(LayerTarget target) {
  return std::make_unique<Portable>(target);
}

}  // namespace harmony::worker
