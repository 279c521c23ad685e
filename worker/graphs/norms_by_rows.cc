#include "worker/graphs/norms_by_rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <utility>

#include "worker/device/torch_tensors.h"
#include "worker/graphs/operator_parts.h"

namespace harmony::worker {
namespace {

// What the row kernels are given has to live as long as this.
struct RowsOfNorm {
  RowsOfNorm(const at::Tensor& of, at::IntArrayRef shape,
             const std::optional<at::Tensor>& of_weight, const std::optional<at::Tensor>& of_bias,
             bool centred)
      : input(of.contiguous()), parameters(NormParameterType(of, of_weight, of_bias)) {
    norm.width = c10::multiply_integers(shape);
    norm.rows = norm.width == 0 ? 0 : input.numel() / norm.width;
    norm.centred = centred;
    norm.type = NumberOf(input.scalar_type());
    norm.parameters = NumberOf(parameters);
    norm.x = input.const_data_ptr();
    if (of_weight.has_value()) norm.weight = (weight = of_weight->contiguous()).const_data_ptr();
    if (of_bias.has_value()) norm.bias = (bias = of_bias->contiguous()).const_data_ptr();
  }

  at::Tensor input, weight, bias;
  at::ScalarType parameters;
  NormRows norm;
};

// The mean is undefined where the rows are not centred.
NormResults ForwardByRows(const RowKernels& kernels, RowsOfNorm& rows, at::IntArrayRef shape,
                          double eps) {
  at::DimVector statistics(rows.input.sizes().begin(), rows.input.sizes().end());
  std::fill(statistics.end() - static_cast<std::ptrdiff_t>(shape.size()), statistics.end(), 1);
  const at::Tensor made = at::empty_like(rows.input);
  const at::Tensor rstd = at::empty(statistics, rows.input.options().dtype(at::kFloat));
  at::Tensor mean;
  rows.norm.epsilon = static_cast<float>(eps);
  if (rows.norm.centred) rows.norm.mean = (mean = at::empty_like(rstd)).mutable_data_ptr<float>();
  rows.norm.rstd = rstd.mutable_data_ptr<float>();
  kernels.Norm(rows.norm, made.mutable_data_ptr());
  return {made, mean, rstd};
}

NormResults BackwardByRows(const RowKernels& kernels, RowsOfNorm& rows, at::IntArrayRef shape,
                           const at::Tensor& gradient, const at::Tensor& mean,
                           const at::Tensor& deviation, const at::Tensor& other,
                           std::array<bool, 3> wanted) {
  NormRows& norm = rows.norm;
  const at::Tensor of_output = gradient.contiguous(), deviations = deviation.contiguous();
  at::Tensor means;
  if (norm.centred) norm.mean = (means = mean.contiguous()).mutable_data_ptr<float>();
  norm.rstd = deviations.mutable_data_ptr<float>();
  const at::TensorOptions sums = rows.input.options().dtype(at::kFloat);
  at::Tensor of_input, of_weight, of_bias, scratch;
  NormGradients gradients;
  gradients.of_y = of_output.const_data_ptr();
  if (other.defined()) gradients.other = other.const_data_ptr();
  if (wanted[0]) {
    of_input = at::empty_like(rows.input);
    gradients.of_x = of_input.mutable_data_ptr();
  }
  if (wanted[1]) {
    of_weight = at::zeros(shape, sums);
    gradients.of_weight = of_weight.mutable_data_ptr<float>();
  }
  if (wanted[2]) {
    of_bias = at::zeros(shape, sums);
    gradients.of_bias = of_bias.mutable_data_ptr<float>();
  }
  if (wanted[1] || wanted[2]) {
    const RowParts parts(norm.rows, norm.width);
    scratch = at::empty({parts.parts * norm.width * (wanted[2] ? 2 : 1)}, sums);
    gradients.scratch = scratch.mutable_data_ptr<float>();
  }
  kernels.NormBackward(norm, gradients);
  if (wanted[1]) of_weight = of_weight.to(rows.parameters);
  if (wanted[2]) of_bias = of_bias.to(rows.parameters);
  return {of_input, of_weight, of_bias};
}

bool OneType(const std::optional<at::Tensor>& a, const std::optional<at::Tensor>& b) {
  return !a.has_value() || !b.has_value() || a->scalar_type() == b->scalar_type();
}

}  // namespace

bool IsOfRows(const at::Tensor& input, const std::optional<at::Tensor>& weight,
              const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& gradient) {
  const auto known = [](at::ScalarType type) {
    return type == at::kFloat || type == at::kBFloat16;
  };
  return known(input.scalar_type()) && known(NormParameterType(input, weight, bias)) &&
         OneType(weight, bias) && OneType(input, gradient);
}

NormResults LayerNormByRows(const RowKernels& kernels, const at::Tensor& input,
                            at::IntArrayRef shape, const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, double eps) {
  RowsOfNorm rows(input, shape, weight, bias, /*centred=*/true);
  return ForwardByRows(kernels, rows, shape, eps);
}

NormResults LayerNormBackwardByRows(const RowKernels& kernels, const at::Tensor& gradient,
                                    const at::Tensor& input, at::IntArrayRef shape,
                                    const at::Tensor& mean, const at::Tensor& deviation,
                                    const std::optional<at::Tensor>& weight,
                                    const std::optional<at::Tensor>& bias,
                                    std::array<bool, 3> wanted) {
  RowsOfNorm rows(input, shape, weight, bias, /*centred=*/true);
  return BackwardByRows(kernels, rows, shape, gradient, mean, deviation, at::Tensor(), wanted);
}

RmsNormResults RmsNormByRows(const RowKernels& kernels, const at::Tensor& input,
                             const at::Tensor& weight, double eps) {
  CheckRmsNorm(input, weight);
  RowsOfNorm rows(input, weight.sizes(), weight, std::nullopt, /*centred=*/false);
  const auto [made, mean, rstd] = ForwardByRows(kernels, rows, weight.sizes(), eps);
  return {made, rstd};
}

RmsNormResults RmsNormBackwardByRows(const RowKernels& kernels, const at::Tensor& gradient,
                                     const at::Tensor& input, const at::Tensor& weight,
                                     const at::Tensor& rstd,
                                     const std::optional<at::Tensor>& other) {
  CheckRmsNormBackward(gradient, input, weight, rstd, other);
  RowsOfNorm rows(input, weight.sizes(), weight, std::nullopt, /*centred=*/false);
  const at::Tensor added = other.has_value() ? other->contiguous() : at::Tensor();
  const auto [of_input, of_weight, of_bias] = BackwardByRows(
      kernels, rows, weight.sizes(), gradient, at::Tensor(), rstd, added, {true, true, false});
  return {of_input, of_weight};
}

}  // namespace harmony::worker
