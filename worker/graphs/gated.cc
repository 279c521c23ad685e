#include "worker/graphs/gated.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>

#include "worker/device/torch_tensors.h"
#include "worker/graphs/define_operator.h"
#include "worker/graphs/operator_parts.h"
#include "worker/models/functional.h"

namespace harmony::worker {
namespace {

using model::Activation;

Activation ActivationOf(c10::string_view name) {
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  TORCH_CHECK(name == "gelu_tanh", "'", name, "' is not silu, gelu or gelu_tanh");
  return Activation::kGeluTanh;
}

void CheckAlike(const at::Tensor& one, const at::Tensor& other) {
  NumberOf(one.scalar_type());  // of a type that all devices compute in
  TORCH_CHECK(one.sizes() == other.sizes() && one.scalar_type() == other.scalar_type(),
              "factors and gradients are alike, not ", one.scalar_type(), " ", one.sizes(), " and ",
              other.scalar_type(), " ", other.sizes());
}

// activation(gate) * by
at::Tensor Product(const at::Tensor& gate, const at::Tensor& by, Activation activation) {
  at::Tensor activated;
  functional::Activate(activated, gate, activation);
  return activated.mul_(by);
}

at::Tensor Gated(const at::Tensor& gate, const at::Tensor& up, c10::string_view activation) {
  CheckAlike(gate, up);
  return Product(gate, up, ActivationOf(activation));
}

GatedGradients GatedBackward(const at::Tensor& gradient, const at::Tensor& gate,
                             const at::Tensor& up, c10::string_view name) {
  CheckAlike(gate, up);
  CheckAlike(gate, gradient);
  const Activation activation = ActivationOf(name);
  at::Tensor of_gate = at::mul(gradient, up);
  functional::ActivateBackwardInPlace(of_gate, gate, activation);
  return {of_gate, Product(gate, gradient, activation)};
}

// A matrix of contiguous rows, copied where the tensor is none.
at::Tensor Rows(const at::Tensor& tensor) {
  return WithRows(tensor.reshape({-1, tensor.size(-1)}));
}

}  // namespace

at::Tensor GatedByRows(const RowKernels& kernels, const at::Tensor& given_gate,
                       const at::Tensor& given_up, c10::string_view activation) {
  CheckAlike(given_gate, given_up);
  const at::Tensor made = at::empty(given_gate.sizes(), given_gate.options());
  if (made.numel() == 0) return made;
  const at::Tensor gate = Rows(given_gate), up = Rows(given_up);
  kernels.Gated(functional::RowsOfGated(gate, up, ActivationOf(activation)),
                made.mutable_data_ptr());
  return made;
}

GatedGradients GatedBackwardByRows(const RowKernels& kernels, const at::Tensor& given_gradient,
                                   const at::Tensor& given_gate, const at::Tensor& given_up,
                                   c10::string_view activation) {
  CheckAlike(given_gate, given_up);
  CheckAlike(given_gate, given_gradient);
  const at::Tensor of_gate = at::empty(given_gate.sizes(), given_gate.options());
  const at::Tensor of_up = at::empty_like(of_gate);
  if (of_gate.numel() == 0) return {of_gate, of_up};
  const at::Tensor gate = Rows(given_gate), up = Rows(given_up);
  const at::Tensor gradient = given_gradient.contiguous();
  kernels.GatedBackward(functional::RowsOfGated(gate, up, ActivationOf(activation)),
                        gradient.const_data_ptr(), of_gate.mutable_data_ptr(),
                        of_up.mutable_data_ptr());
  return {of_gate, of_up};
}

void DefineGated(torch::Library& library) {
  const auto define = [&](auto... operation) { DefineOperator(library, operation...); };
  define("gated(Tensor gate, Tensor up, str activation) -> Tensor", "gated", TORCH_FN(Gated));
  define(
      "gated_backward(Tensor gradient, Tensor gate, Tensor up, str activation) -> (Tensor, Tensor)",
      "gated_backward", TORCH_FN(GatedBackward));
}

}  // namespace harmony::worker
