#include "worker/graphs/gated.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <torch/library.h>

#include "worker/device/torch_tensors.h"

namespace harmony::worker {
namespace {

Gate GateOf(c10::string_view activation) {
  if (activation == "silu") return Gate::kSilu;
  if (activation == "gelu") return Gate::kGelu;
  TORCH_CHECK(activation == "gelu_tanh", "'", activation, "' is not silu, gelu or gelu_tanh");
  return Gate::kGeluTanh;
}

const char* GeluName(Gate gate) { return gate == Gate::kGeluTanh ? "tanh" : "none"; }

void CheckAlike(const at::Tensor& one, const at::Tensor& other) {
  NumberOf(one.scalar_type());  // of a type that all devices compute in
  TORCH_CHECK(one.sizes() == other.sizes() && one.scalar_type() == other.scalar_type(),
              "factors and gradients are alike, not ", one.scalar_type(), " ", one.sizes(), " and ",
              other.scalar_type(), " ", other.sizes());
}

at::Tensor Activated(const at::Tensor& gate, Gate by) {
  return by == Gate::kSilu ? at::silu(gate) : at::gelu(gate, GeluName(by));
}

at::Tensor Gated(const at::Tensor& gate, const at::Tensor& up, c10::string_view activation) {
  CheckAlike(gate, up);
  return Activated(gate, GateOf(activation)).mul_(up);
}

GatedGradients GatedBackward(const at::Tensor& gradient, const at::Tensor& gate,
                             const at::Tensor& up, c10::string_view activation) {
  CheckAlike(gate, up);
  CheckAlike(gate, gradient);
  const Gate by = GateOf(activation);
  at::Tensor of_gate = at::mul(gradient, up);
  if (by == Gate::kSilu) {
    at::silu_backward_out(of_gate, of_gate, gate);
  } else {
    at::gelu_backward_out(of_gate, of_gate, gate, GeluName(by));
  }
  return {of_gate, Activated(gate, by).mul_(gradient)};
}

GatedRows RowsOf(const at::Tensor& gate, const at::Tensor& up, Gate by) {
  return {NumberOf(gate.scalar_type()), by, gate.numel(), gate.const_data_ptr(),
          up.const_data_ptr()};
}

}  // namespace

at::Tensor GatedByRows(const RowKernels& kernels, const at::Tensor& given_gate,
                       const at::Tensor& given_up, c10::string_view activation) {
  CheckAlike(given_gate, given_up);
  const at::Tensor gate = given_gate.contiguous(), up = given_up.contiguous();
  const at::Tensor made = at::empty_like(gate);
  kernels.Gated(RowsOf(gate, up, GateOf(activation)), made.mutable_data_ptr());
  return made;
}

GatedGradients GatedBackwardByRows(const RowKernels& kernels, const at::Tensor& given_gradient,
                                   const at::Tensor& given_gate, const at::Tensor& given_up,
                                   c10::string_view activation) {
  CheckAlike(given_gate, given_up);
  CheckAlike(given_gate, given_gradient);
  const at::Tensor gate = given_gate.contiguous(), up = given_up.contiguous();
  const at::Tensor gradient = given_gradient.contiguous();
  const at::Tensor of_gate = at::empty_like(gate), of_up = at::empty_like(gate);
  kernels.GatedBackward(RowsOf(gate, up, GateOf(activation)), gradient.const_data_ptr(),
                        of_gate.mutable_data_ptr(), of_up.mutable_data_ptr());
  return {of_gate, of_up};
}

void DefineGated(torch::Library& library) {
  const auto define = [&](const char* schema, const char* name, auto function) {
    library.def(schema);
    library.impl(name, torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, function));
  };
  define("gated(Tensor gate, Tensor up, str activation) -> Tensor", "gated", TORCH_FN(Gated));
  define(
      "gated_backward(Tensor gradient, Tensor gate, Tensor up, str activation) -> (Tensor, Tensor)",
      "gated_backward", TORCH_FN(GatedBackward));
}

}  // namespace harmony::worker
