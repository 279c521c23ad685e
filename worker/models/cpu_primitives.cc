#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "worker/models/functional.h"
#include "worker/models/gemm.h"
#include "worker/models/heads.h"
#include "worker/models/kernels.h"
#include "worker/models/primitives.h"

namespace harmony::worker {
namespace {

// Calls fn with a null pointer of the type of the tensor's numbers. REQUIRES: fp32 or bf16.
template <typename Fn>
auto WithNumbersOf(const at::Tensor& tensor, Fn&& fn) {
  return tensor.scalar_type() == at::kBFloat16 ? fn(static_cast<c10::BFloat16*>(nullptr))
                                               : fn(static_cast<float*>(nullptr));
}

// Where LibTorch gives its result in a tensor of its own.
void Put(at::Tensor& place, at::Tensor made) {
  if (place.defined()) {
    place.copy_(made);
  } else {
    place = std::move(made);
  }
}

// LibTorch keeps the statistics of a norm in fp32 where its parameters are fp32.
at::Tensor Wide(const at::Tensor& tensor) { return tensor.to(at::kFloat); }

class CpuKernels : public Primitives {
 public:
  CpuKernels() : Primitives(LayerTarget()) {}

  void MatMul(at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
              bool accumulate) const override {
    worker::MatMul(c, a, b, accumulate);
  }

  void AddSumOfRows(at::Tensor& sums, const at::Tensor& dy) const override {
    if (dy.scalar_type() == at::kBFloat16) {
      // ATen would widen all of dy first.
      kernels::SumPositions(sums.mutable_data_ptr<float>(), dy.const_data_ptr<c10::BFloat16>(),
                            dy.size(0), 1, dy.size(1));
    } else {
      sums.add_(at::sum(dy, {0}));
    }
  }

  void Norm(at::Tensor& y, const at::Tensor& x, const NormParam& param,
            NormSaved& saved) const override;
  at::Tensor NormBackward(at::Tensor dy, const at::Tensor& x, const NormParam& param,
                          const NormSaved& saved) const override;
  void Attention(AttentionSaved& saved, const at::Tensor& q, const at::Tensor& k,
                 const at::Tensor& v) const override;
  AttentionGradients AttentionBackward(const at::Tensor& dy, const at::Tensor& q,
                                       const at::Tensor& k, const at::Tensor& v,
                                       const AttentionSaved& saved) const override;

  void Gated(at::Tensor& out, const at::Tensor& gate, const at::Tensor& up,
             model::Activation activation, int64_t rows) const override;
  void GatedBackward(at::Tensor& gradient, at::Tensor& dup, const at::Tensor& gate,
                     const at::Tensor& up, model::Activation activation) const override;

  void Rotate(at::Tensor& rows, const RopeTables& tables, BatchShape shape,
              bool inverse) const override {
    WithNumbersOf(rows, [&]<typename T>(T*) {
      kernels::Rotate(rows.mutable_data_ptr<T>(), tables.cosines.data(), tables.sines.data(),
                      shape.samples, shape.tokens, rows.size(1) / tables.head_dim, tables.head_dim,
                      inverse);
    });
  }

  int64_t GatherRows(const at::Tensor& table, const at::Tensor& ids, at::Tensor& y) const override {
    return WithNumbersOf(y, [&]<typename T>(T*) {
      return kernels::GatherRows(table.const_data_ptr<T>(), table.size(0),
                                 ids.const_data_ptr<int32_t>(), y.size(0), y.size(1),
                                 y.mutable_data_ptr<T>());
    });
  }
  void ScatterAddRows(at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& dy,
                      int64_t skip) const override {
    WithNumbersOf(dy, [&]<typename T>(T*) {
      kernels::ScatterAddRows(gradient.mutable_data_ptr<float>(), ids.const_data_ptr<int32_t>(),
                              dy.const_data_ptr<T>(), dy.size(0), dy.size(1), skip);
    });
  }
  void AddPositions(at::Tensor& y, const at::Tensor& positions, BatchShape shape) const override {
    WithNumbersOf(y, [&]<typename T>(T*) {
      kernels::AddPositions(y.mutable_data_ptr<T>(), positions.const_data_ptr<T>(), shape.samples,
                            shape.tokens, y.size(1));
    });
  }
  void SumPositions(at::Tensor& gradient, const at::Tensor& dy, BatchShape shape) const override {
    WithNumbersOf(dy, [&]<typename T>(T*) {
      kernels::SumPositions(gradient.mutable_data_ptr<float>(), dy.const_data_ptr<T>(),
                            shape.samples, shape.tokens, dy.size(1));
    });
  }

  double RunLinearLoss(LinearLoss& loss) const override;
};

void CpuKernels::Norm(at::Tensor& y, const at::Tensor& x, const NormParam& param,
                      NormSaved& saved) const {
  const int64_t width = x.size(-1);
  if (param.bias.weight.defined()) {
    auto [made, mean, rstd] = at::native_layer_norm(x, {width}, Wide(param.weight.weight),
                                                    Wide(param.bias.weight), param.epsilon);
    Put(y, std::move(made));
    Put(saved.mean, std::move(mean));
    Put(saved.rstd, std::move(rstd));
    return;
  }
  const int64_t rows = x.numel() / width;
  if (!y.defined()) y = at::empty_like(x);
  if (!saved.rstd.defined()) saved.rstd = at::empty({rows}, at::kFloat);
  WithNumbersOf(x, [&]<typename T>(T*) {
    kernels::RmsNorm(x.const_data_ptr<T>(), param.weight.weight.const_data_ptr<T>(), rows, width,
                     static_cast<float>(param.epsilon), y.mutable_data_ptr<T>(),
                     saved.rstd.mutable_data_ptr<float>());
  });
}

at::Tensor CpuKernels::NormBackward(at::Tensor dy, const at::Tensor& x, const NormParam& param,
                                    const NormSaved& saved) const {
  const int64_t width = x.size(-1);
  at::Tensor weight_gradient = param.weight.gradient;
  if (param.bias.weight.defined()) {
    auto [dx, dweight, dbias] = at::native_layer_norm_backward(
        dy, x, {width}, saved.mean, saved.rstd, Wide(param.weight.weight), Wide(param.bias.weight),
        {true, true, true});
    at::Tensor bias_gradient = param.bias.gradient;
    weight_gradient.add_(dweight);
    bias_gradient.add_(dbias);
    return dx;
  }
  WithNumbersOf(x, [&]<typename T>(T*) {
    kernels::RmsNormBackward(dy.const_data_ptr<T>(), x.const_data_ptr<T>(),
                             param.weight.weight.const_data_ptr<T>(),
                             saved.rstd.const_data_ptr<float>(), x.numel() / width, width,
                             dy.mutable_data_ptr<T>(), weight_gradient.mutable_data_ptr<float>());
  });
  return dy;
}

// The kernel is the one that at::scaled_dot_product_attention picks on the CPU, called by its own
// name because its backward needs the log-sum-exp. It wants as many key heads as query heads. So
// with grouped queries it runs once for each position r in a group, on query heads r, r + H/K, ...:
// keys and values are never repeated in memory, and their gradients are summed in the order of r.

// Query heads at position r of their groups.
at::Tensor GroupMember(const at::Tensor& heads, int64_t r, int64_t group) {
  return group == 1 ? heads : heads.slice(1, r, std::nullopt, group);
}

at::Tensor NewHeads(const at::Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
      .transpose(1, 2);
}

void CpuKernels::Attention(AttentionSaved& saved, const at::Tensor& q, const at::Tensor& k,
                           const at::Tensor& v) const {
  const int64_t group = q.size(1) / k.size(1);
  const bool placed = saved.output.defined();
  saved.logsumexp.resize(static_cast<size_t>(group));
  at::Tensor output;
  if (group > 1) output = placed ? RowsAsHeads(saved.output, q) : NewHeads(q);
  for (int64_t r = 0; r < group; ++r) {
    auto [part, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        GroupMember(q, r, group), k, v, /*dropout_p=*/0.0, /*is_causal=*/true);
    Put(saved.logsumexp[static_cast<size_t>(r)], std::move(logsumexp));
    if (group == 1) {
      output = part;
    } else {
      GroupMember(output, r, group).copy_(part);
    }
  }
  if (!placed || group == 1) Put(saved.output, HeadsAsRows(output));
}

AttentionGradients CpuKernels::AttentionBackward(const at::Tensor& dy, const at::Tensor& q,
                                                 const at::Tensor& k, const at::Tensor& v,
                                                 const AttentionSaved& saved) const {
  const int64_t group = q.size(1) / k.size(1);
  const at::Tensor doutput = RowsAsHeads(dy, q);
  const at::Tensor output = RowsAsHeads(saved.output, q);
  AttentionGradients sum;
  if (group > 1) sum.dq = NewHeads(q);
  for (int64_t r = 0; r < group; ++r) {
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        GroupMember(doutput, r, group), GroupMember(q, r, group), k, v,
        GroupMember(output, r, group), saved.logsumexp[r], /*dropout_p=*/0.0, /*is_causal=*/true);
    if (group == 1) return AttentionGradients{dq, dk, dv};
    GroupMember(sum.dq, r, group).copy_(dq);
    if (r == 0) {
      sum.dk = Wide(dk);
      sum.dv = Wide(dv);
    } else {
      sum.dk.add_(dk);
      sum.dv.add_(dv);
    }
  }
  sum.dk = sum.dk.to(k.scalar_type());
  sum.dv = sum.dv.to(v.scalar_type());
  return sum;
}

void CpuKernels::Gated(at::Tensor& out, const at::Tensor& gate, const at::Tensor& up,
                       model::Activation activation, int64_t rows) const {
  if (out.is_same(gate)) {
    functional::ActivateInPlace(out, activation, rows);
  } else {
    functional::Activate(out, gate, activation);
  }
  out.mul_(up);
}

void CpuKernels::GatedBackward(at::Tensor& gradient, at::Tensor& dup, const at::Tensor& gate,
                               const at::Tensor& up, model::Activation activation) const {
  // By stretches of rows: only a stretch of activations exists. The workspace that a plan has for
  // it is of so many (transformer_costs.cc, kStretchRows).
  constexpr int64_t kStretch = 64;
  for (int64_t begin = 0; begin < gradient.size(0); begin += kStretch) {
    const int64_t count = std::min(kStretch, gradient.size(0) - begin);
    at::Tensor part = dup.narrow(0, begin, count), activated;
    functional::Activate(activated, gate.narrow(0, begin, count), activation);
    at::mul_out(part, gradient.narrow(0, begin, count), activated);
  }
  gradient.mul_(up);
  functional::ActivateBackwardInPlace(gradient, gate, activation);
}

double CpuKernels::RunLinearLoss(LinearLoss& loss) const {
  const int64_t rows = loss.x.size(0), classes = loss.weight.size(0);
  const bool biased = loss.bias.defined();
  const int64_t chunk_rows = std::min(rows, loss.chunk_rows);
  const at::Tensor weight_in_out = loss.weight.t();
  const int32_t* const labels = loss.labels.const_data_ptr<int32_t>();
  at::Tensor buffer = at::empty({chunk_rows, classes}, loss.x.options());
  std::vector<double> row_loss(static_cast<size_t>(rows));
  for (int64_t begin = 0; begin < rows; begin += chunk_rows) {
    const int64_t count = std::min(chunk_rows, rows - begin);
    at::Tensor logits = buffer.narrow(0, 0, count);
    const at::Tensor chunk = loss.x.narrow(0, begin, count);
    at::Tensor chunk_gradient = loss.x_gradient.narrow(0, begin, count);
    if (biased) logits.copy_(loss.bias.expand({count, classes}));
    MatMul(logits, chunk, weight_in_out, /*accumulate=*/biased);
    WithNumbersOf(logits, [&]<typename T>(T*) {
      kernels::CrossEntropy(logits.mutable_data_ptr<T>(), labels + begin, count, classes,
                            loss.scale, row_loss.data() + begin);
    });
    MatMul(loss.weight_gradient, logits.t(), chunk,
           /*accumulate=*/begin > 0 || !loss.sets_weight_gradient);
    MatMul(chunk_gradient, logits, loss.weight, /*accumulate=*/false);
    if (biased) loss.bias_gradient.add_(logits.sum(0));
  }
  return std::accumulate(row_loss.begin(), row_loss.end(), 0.0);
}

}  // namespace

const Primitives& CpuPrimitives() {
  static const CpuKernels kernels;
  return kernels;
}

}  // namespace harmony::worker
