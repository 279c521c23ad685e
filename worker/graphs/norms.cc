#include "worker/graphs/norms.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_native_batch_norm_legit.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/native_group_norm.h>
#include <ATen/ops/native_group_norm_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include <array>
#include <numeric>
#include <optional>
#include <tuple>

#include "worker/device/torch_tensors.h"
#include "worker/graphs/define_operator.h"
#include "worker/graphs/operator_parts.h"

namespace harmony::worker {
namespace {

// What a kernel is to read a tensor as: only the CPU's take an input narrower than the parameters.
at::Tensor Readable(const at::Tensor& tensor, at::ScalarType parameters) {
  return tensor.is_cpu() ? tensor : tensor.to(parameters);
}

NormResults GroupNorm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias, int64_t samples, int64_t channels,
                      int64_t size, int64_t groups, double eps) {
  const at::ScalarType parameters = NormParameterType(input, weight, bias);
  const auto [made, mean, deviation] = at::native_group_norm(
      Readable(input, parameters), weight, bias, samples, channels, size, groups, eps);
  return {made.to(input.scalar_type()), mean, deviation};
}

// The statistics have the parameters' type.
NormResults GroupNormBackward(const at::Tensor& gradient, const at::Tensor& input,
                              const at::Tensor& mean, const at::Tensor& deviation,
                              const std::optional<at::Tensor>& weight, int64_t samples,
                              int64_t channels, int64_t size, int64_t groups,
                              std::array<bool, 3> wanted) {
  const at::ScalarType parameters = mean.scalar_type();
  auto [of_input, of_weight, of_bias] = at::native_group_norm_backward(
      Readable(gradient, parameters), Readable(input, parameters), mean, deviation, weight, samples,
      channels, size, groups, wanted);
  if (wanted[0]) of_input = of_input.to(input.scalar_type());
  return {of_input, of_weight, of_bias};
}

NormResults BatchNorm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias, bool training, double momentum,
                      double eps) {
  const auto [made, mean, deviation] =
      at::_native_batch_norm_legit(input, weight, bias, training, momentum, eps);
  return {made, mean.to(at::kFloat), deviation.to(at::kFloat)};
}

NormResults BatchNormBackward(const at::Tensor& gradient, const at::Tensor& input,
                              const std::optional<at::Tensor>& weight,
                              const std::optional<at::Tensor>& running_mean,
                              const std::optional<at::Tensor>& running_variance,
                              const std::optional<at::Tensor>& mean,
                              const std::optional<at::Tensor>& deviation, bool training, double eps,
                              std::array<bool, 3> wanted) {
  // The CPU's kernel takes parameters and statistics of one type.
  const auto readable = [&](const std::optional<at::Tensor>& statistics) {
    const bool narrow = input.is_cpu() && weight.has_value() && statistics.has_value();
    return narrow ? statistics->to(weight->scalar_type()) : statistics;
  };
  return at::native_batch_norm_backward(gradient, input, weight, running_mean, running_variance,
                                        readable(mean), readable(deviation), training, eps, wanted);
}

// As eager PyTorch computes it on the CPU, operation by operation: the same bits.
RmsNormResults RmsNorm(const at::Tensor& input, const at::Tensor& weight, double eps) {
  CheckRmsNorm(input, weight);
  at::Tensor wide = input.to(at::kFloat);
  const at::Tensor rstd = wide.pow(2).mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
  wide = wide.is_same(input) ? wide.mul(rstd) : wide.mul_(rstd);
  return {at::mul(weight, wide.to(weight.scalar_type())).to(input.scalar_type()), rstd};
}

// The same. What autograd adds up over dimensions is added up over all but the last. A gradient in
// another order in memory stays in it, for that is the order in which its numbers are added up.
RmsNormResults RmsNormBackward(const at::Tensor& gradient, const at::Tensor& input,
                               const at::Tensor& weight, const at::Tensor& rstd,
                               const std::optional<at::Tensor>& other) {
  CheckRmsNormBackward(gradient, input, weight, rstd, other);
  const at::ScalarType kind = weight.scalar_type();
  const at::Tensor wide = input.to(at::kFloat), of_output = gradient.to(kind);
  at::DimVector rows(static_cast<size_t>(input.dim() - 1));
  std::iota(rows.begin(), rows.end(), 0);
  at::Tensor of_weight = at::mul(of_output, wide.mul(rstd).to(kind));
  of_weight = rows.empty() ? of_weight : of_weight.sum(rows);
  at::Tensor along = at::mul(of_output, weight).to(at::kFloat);
  const at::Tensor of_squares = along.mul(wide)
                                    .sum(-1, /*keepdim=*/true)
                                    .mul_(-0.5)
                                    .mul_(rstd.pow(3))
                                    .div_(static_cast<double>(input.size(-1)));
  along.mul_(rstd);
  if (other.has_value()) along = at::add(*other, along);
  at::Tensor twice = wide.is_same(input) ? wide.mul(2.0) : at::Tensor(wide).mul_(2.0);
  along.add_(twice.mul_(of_squares));
  return {along.to(input.scalar_type()).contiguous(), of_weight};
}

}  // namespace

NormResults LayerNormOfTorch(const at::Tensor& input, at::IntArrayRef shape,
                             const std::optional<at::Tensor>& weight,
                             const std::optional<at::Tensor>& bias, double eps) {
  const at::ScalarType parameters = NormParameterType(input, weight, bias);
  const auto [made, mean, deviation] =
      at::native_layer_norm(Readable(input, parameters), shape, weight, bias, eps);
  return {made.to(input.scalar_type()), mean.to(at::kFloat), deviation.to(at::kFloat)};
}

NormResults LayerNormBackwardOfTorch(const at::Tensor& gradient, const at::Tensor& input,
                                     at::IntArrayRef shape, const at::Tensor& mean,
                                     const at::Tensor& deviation,
                                     const std::optional<at::Tensor>& weight,
                                     const std::optional<at::Tensor>& bias,
                                     std::array<bool, 3> wanted) {
  const at::ScalarType parameters = NormParameterType(input, weight, bias);
  // They came from this type, which loses nothing.
  const at::ScalarType statistics = input.is_cpu() ? parameters : at::kFloat;
  auto [of_input, of_weight, of_bias] = at::native_layer_norm_backward(
      Readable(gradient, parameters), Readable(input, parameters), shape, mean.to(statistics),
      deviation.to(statistics), weight, bias, wanted);
  if (wanted[0]) of_input = of_input.to(input.scalar_type());
  return {of_input, of_weight, of_bias};
}

at::ScalarType NormParameterType(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                                 const std::optional<at::Tensor>& bias) {
  if (weight.has_value()) return weight->scalar_type();
  return bias.has_value() ? bias->scalar_type() : input.scalar_type();
}

void CheckRmsNorm(const at::Tensor& input, const at::Tensor& weight) {
  NumberOf(input.scalar_type());  // of a type that all devices compute in
  TORCH_CHECK(
      input.dim() > 0 && weight.dim() == 1 && weight.size(0) == input.size(-1) &&
          input.size(-1) > 0 &&
          (weight.scalar_type() == input.scalar_type() || weight.scalar_type() == at::kFloat),
      "rows of ", input.scalar_type(), " ", input.sizes(), ", a weight of ", weight.scalar_type(),
      " ", weight.sizes());
}

void CheckRmsNormBackward(const at::Tensor& gradient, const at::Tensor& input,
                          const at::Tensor& weight, const at::Tensor& rstd,
                          const std::optional<at::Tensor>& other) {
  CheckRmsNorm(input, weight);
  const auto like_input = [&](const at::Tensor& tensor) {
    return tensor.sizes() == input.sizes() && tensor.scalar_type() == input.scalar_type();
  };
  TORCH_CHECK(like_input(gradient) && (!other.has_value() || like_input(*other)),
              "gradients are like the input, ", input.scalar_type(), " ", input.sizes());
  TORCH_CHECK(rstd.scalar_type() == at::kFloat && rstd.dim() == input.dim() &&
                  rstd.numel() * input.size(-1) == input.numel(),
              "the numbers of rows are ", rstd.scalar_type(), " ", rstd.sizes(), ", of ",
              input.sizes());
}

void DefineNorms(torch::Library& library) {
  const auto define = [&](auto... operation) { DefineOperator(library, operation...); };
  define(
      "layer_norm(Tensor input, int[] normalized_shape, Tensor? weight, Tensor? bias, float eps) "
      "-> (Tensor, Tensor, Tensor)",
      "layer_norm", TORCH_FN(LayerNormOfTorch));
  define(
      "layer_norm_backward(Tensor gradient, Tensor input, int[] normalized_shape, Tensor mean, "
      "Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
      "layer_norm_backward", TORCH_FN(LayerNormBackwardOfTorch));
  define(
      "group_norm(Tensor input, Tensor? weight, Tensor? bias, int N, int C, int HxW, int group, "
      "float eps) -> (Tensor, Tensor, Tensor)",
      "group_norm", TORCH_FN(GroupNorm));
  define(
      "group_norm_backward(Tensor gradient, Tensor input, Tensor mean, Tensor rstd, Tensor? "
      "weight, int N, int C, int HxW, int group, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
      "group_norm_backward", TORCH_FN(GroupNormBackward));
  define("rms_norm(Tensor input, Tensor weight, float eps) -> (Tensor, Tensor)", "rms_norm",
         TORCH_FN(RmsNorm));
  define(
      "rms_norm_backward(Tensor gradient, Tensor input, Tensor weight, Tensor rstd, Tensor? other) "
      "-> (Tensor, Tensor)",
      "rms_norm_backward", TORCH_FN(RmsNormBackward));
  define(
      "batch_norm(Tensor input, Tensor? weight, Tensor? bias, bool training, float momentum, float "
      "eps) -> (Tensor, Tensor, Tensor)",
      "batch_norm", TORCH_FN(BatchNorm));
  define(
      "batch_norm_backward(Tensor gradient, Tensor input, Tensor? weight, Tensor? running_mean, "
      "Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] "
      "output_mask) -> (Tensor, Tensor, Tensor)",
      "batch_norm_backward", TORCH_FN(BatchNormBackward));
}

}  // namespace harmony::worker
