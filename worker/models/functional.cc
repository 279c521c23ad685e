#include "worker/models/functional.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/add.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/threshold_backward.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/models/gemm.h"
#include "worker/models/kernels.h"

namespace harmony::worker::functional {
namespace {

// The weight as [in, out], whichever way it is stored.
at::Tensor InOut(const at::Tensor& weight, bool in_out) { return in_out ? weight : weight.t(); }

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

const char* GeluName(model::Activation kind) {
  return kind == model::Activation::kGeluTanh ? "tanh" : "none";
}

}  // namespace

void Linear(at::Tensor& y, const at::Tensor& x, const LinearParam& param) {
  const at::Tensor weight = InOut(param.weight.weight, param.in_out);
  if (!y.defined()) y = at::empty({x.size(0), weight.size(1)}, x.options());
  if (param.bias.weight.defined()) y.copy_(param.bias.weight.expand_as(y));
  MatMul(y, x, weight, /*accumulate=*/param.bias.weight.defined());
}

void LinearResidual(at::Tensor& y, const at::Tensor& residual, const at::Tensor& x,
                    const LinearParam& param) {
  if (param.bias.weight.defined()) {
    at::add_out(y, residual, param.bias.weight);
  } else if (!y.is_same(residual)) {
    y.copy_(residual);
  }
  MatMul(y, x, InOut(param.weight.weight, param.in_out), /*accumulate=*/true);
}

void LinearWeightGradient(const at::Tensor& dy, const at::Tensor& x, const LinearParam& param) {
  at::Tensor gradient = param.weight.gradient;
  if (param.in_out) {
    MatMul(gradient, x.t(), dy, /*accumulate=*/true);
  } else {
    MatMul(gradient, dy.t(), x, /*accumulate=*/true);
  }
  if (param.bias.gradient.defined()) {
    at::Tensor bias_gradient = param.bias.gradient;
    if (dy.scalar_type() == at::kBFloat16) {
      // ATen would widen all of dy first.
      kernels::SumPositions(bias_gradient.mutable_data_ptr<float>(),
                            dy.const_data_ptr<c10::BFloat16>(), dy.size(0), 1, dy.size(1));
    } else {
      bias_gradient.add_(at::sum(dy, {0}));
    }
  }
}

at::Tensor LinearInputGradient(const at::Tensor& dy, const LinearParam& param) {
  return MatMul(dy, InOut(param.weight.weight, param.in_out).t());
}

void LinearInputGradientAdd(at::Tensor& dx, const at::Tensor& dy, const LinearParam& param) {
  MatMul(dx, dy, InOut(param.weight.weight, param.in_out).t(), /*accumulate=*/true);
}

NormParam GetNorm(const LayerParams& params, absl::string_view name, double epsilon) {
  NormParam norm;
  norm.weight = params.Get(absl::StrCat(name, ".weight"));
  norm.bias = params.Find(absl::StrCat(name, ".bias"));
  norm.epsilon = epsilon;
  return norm;
}

void Norm(at::Tensor& y, const at::Tensor& x, const NormParam& param, NormSaved& saved) {
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

at::Tensor NormBackward(at::Tensor dy, const at::Tensor& x, const NormParam& param,
                        const NormSaved& saved) {
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

void Activate(at::Tensor& y, const at::Tensor& x, model::Activation kind) {
  if (!y.defined()) y = at::empty_like(x);
  switch (kind) {
    case model::Activation::kSilu:
      at::silu_out(y, x);
      return;
    case model::Activation::kRelu:
      at::clamp_min_out(y, x, 0);  // what relu is
      return;
    case model::Activation::kGeluTanh:
    case model::Activation::kGelu:
      at::gelu_out(y, x, GeluName(kind));
      return;
  }
}

void ActivateInPlace(at::Tensor& x, model::Activation kind, int64_t rows) {
  for (int64_t begin = 0; begin < x.size(0); begin += rows) {
    at::Tensor part = x.narrow(0, begin, std::min(rows, x.size(0) - begin));
    switch (kind) {
      case model::Activation::kSilu:
        at::silu_(part);
        break;
      case model::Activation::kRelu:
        at::relu_(part);
        break;
      case model::Activation::kGeluTanh:
      case model::Activation::kGelu:
        at::gelu_(part, GeluName(kind));
        break;
    }
  }
}

void ActivateBackwardInPlace(at::Tensor& dy, const at::Tensor& x, model::Activation kind) {
  switch (kind) {
    case model::Activation::kSilu:
      at::silu_backward_out(dy, dy, x);
      return;
    case model::Activation::kRelu:
      at::threshold_backward_out(dy, dy, x, 0);
      return;
    case model::Activation::kGeluTanh:
    case model::Activation::kGelu:
      at::gelu_backward_out(dy, dy, x, GeluName(kind));
      return;
  }
}

// The kernel is the one that at::scaled_dot_product_attention picks on the CPU, called by its own
// name because its backward needs the log-sum-exp. It wants as many key heads as query heads. So
// with grouped queries it runs once for each position r in a group, on query heads r, r + H/K, ...:
// keys and values are never repeated in memory, and their gradients are summed in the order of r.

namespace {

// Query heads at position r of their groups.
at::Tensor GroupMember(const at::Tensor& heads, int64_t r, int64_t group) {
  return group == 1 ? heads : heads.slice(1, r, std::nullopt, group);
}

at::Tensor NewHeads(const at::Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
      .transpose(1, 2);
}

// [N, H * D] as [b, H, T, D] for the shape of q.
at::Tensor RowsAsHeads(const at::Tensor& rows, const at::Tensor& q) {
  return rows.view({q.size(0), q.size(2), q.size(1), q.size(3)}).transpose(1, 2);
}

at::Tensor HeadsAsRows(const at::Tensor& heads) {
  return heads.transpose(1, 2).reshape(
      {heads.size(0) * heads.size(2), heads.size(1) * heads.size(3)});
}

}  // namespace

void Attention(AttentionSaved& saved, const at::Tensor& q, const at::Tensor& k,
               const at::Tensor& v) {
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

AttentionGradients AttentionBackward(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                                     const at::Tensor& v, const AttentionSaved& saved) {
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

}  // namespace harmony::worker::functional
