#include "worker/models/functional.h"

#include <ATen/ops/add.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/threshold_backward.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/device/torch_tensors.h"

namespace harmony::worker::functional {
namespace {

// The weight as [in, out], whichever way it is stored.
at::Tensor InOut(const at::Tensor& weight, bool in_out) { return in_out ? weight : weight.t(); }

Gate GateOf(model::Activation kind) {
  switch (kind) {
    case model::Activation::kSilu:
      return Gate::kSilu;
    case model::Activation::kRelu:
      return Gate::kRelu;
    case model::Activation::kGelu:
      return Gate::kGelu;
    case model::Activation::kGeluTanh:
      return Gate::kGeluTanh;
  }
  return Gate::kSilu;
}

const char* GeluName(model::Activation kind) {
  return kind == model::Activation::kGeluTanh ? "tanh" : "none";
}

}  // namespace

void Linear(const Primitives& with, at::Tensor& y, const at::Tensor& x, const LinearParam& param) {
  const at::Tensor weight = InOut(param.weight.weight, param.in_out);
  if (!y.defined()) y = at::empty({x.size(0), weight.size(1)}, x.options());
  if (param.bias.weight.defined()) y.copy_(param.bias.weight.expand_as(y));
  with.MatMul(y, x, weight, /*accumulate=*/param.bias.weight.defined());
}

void LinearResidual(const Primitives& with, at::Tensor& y, const at::Tensor& residual,
                    const at::Tensor& x, const LinearParam& param) {
  if (param.bias.weight.defined()) {
    at::add_out(y, residual, param.bias.weight);
  } else if (!y.is_same(residual)) {
    y.copy_(residual);
  }
  with.MatMul(y, x, InOut(param.weight.weight, param.in_out), /*accumulate=*/true);
}

void LinearWeightGradient(const Primitives& with, const at::Tensor& dy, const at::Tensor& x,
                          const LinearParam& param) {
  at::Tensor gradient = param.weight.gradient;
  if (param.in_out) {
    with.MatMul(gradient, x.t(), dy, /*accumulate=*/true);
  } else {
    with.MatMul(gradient, dy.t(), x, /*accumulate=*/true);
  }
  if (param.bias.gradient.defined()) {
    at::Tensor bias_gradient = param.bias.gradient;
    with.AddSumOfRows(bias_gradient, dy);
  }
}

at::Tensor LinearInputGradient(const Primitives& with, const at::Tensor& dy,
                               const LinearParam& param) {
  const at::Tensor weight = InOut(param.weight.weight, param.in_out).t();
  at::Tensor dx = at::empty({dy.size(0), weight.size(1)}, dy.options());
  with.MatMul(dx, dy, weight, /*accumulate=*/false);
  return dx;
}

void LinearInputGradientAdd(const Primitives& with, at::Tensor& dx, const at::Tensor& dy,
                            const LinearParam& param) {
  with.MatMul(dx, dy, InOut(param.weight.weight, param.in_out).t(), /*accumulate=*/true);
}

NormParam GetNorm(const LayerParams& params, absl::string_view name, double epsilon) {
  NormParam norm;
  norm.weight = params.Get(absl::StrCat(name, ".weight"));
  norm.bias = params.Find(absl::StrCat(name, ".bias"));
  norm.epsilon = epsilon;
  return norm;
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

GatedRows RowsOfGated(const at::Tensor& gate, const at::Tensor& up, model::Activation kind) {
  GatedRows rows{NumberOf(gate.scalar_type()), GateOf(kind)};
  rows.width = gate.numel();
  rows.gate = gate.const_data_ptr();
  rows.up = up.const_data_ptr();
  if (gate.is_contiguous() && up.is_contiguous()) return rows;
  const auto has_rows = [](const at::Tensor& of) { return of.dim() == 2 && of.stride(1) == 1; };
  TORCH_CHECK(has_rows(gate) && has_rows(up),
              "row kernels take contiguous tensors, or matrices whose rows are");
  rows.rows = gate.size(0);
  rows.width = gate.size(1);
  rows.gate_stride = gate.stride(0);
  rows.up_stride = up.stride(0);
  return rows;
}

}  // namespace harmony::worker::functional
