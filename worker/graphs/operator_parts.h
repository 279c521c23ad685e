#pragma once

// What the operators of Harmony's own (own_operators.h) are made of on every device.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>

namespace harmony::worker {

// What is to be drawn, in the memory of one device: `elements` for each of the samples, behind each
// other. Element i of a sample is kept where word i % 4 of block i / 4 of the sample's key and the
// stream is not below the threshold.
struct DropoutDraw {
  const int64_t* keys;
  int64_t samples, elements;
  uint64_t stream, threshold;
  bool* mask;
};
// The operator, whatever draws. Throws c10::Error when the arguments do not fit each other.
at::Tensor MakeDropoutMask(const at::Tensor& keys, int64_t layer, int64_t number,
                           at::IntArrayRef shape, int64_t dimension, double p,
                           void (*draw)(const DropoutDraw&));

// Of the arguments of operators that compute in fp32.
inline bool IsMatrix(const at::Tensor& tensor) {
  return tensor.dim() == 2 && tensor.scalar_type() == at::kFloat;
}
// Whether a bias, if there is one, has a number for each of so many columns.
inline bool BiasFits(const std::optional<at::Tensor>& bias, int64_t columns) {
  return !bias.has_value() ||
         (bias->scalar_type() == at::kFloat && bias->dim() == 1 && bias->size(0) == columns);
}

// A tensor whose rows, its last dimension, are contiguous: copied where they are not.
inline at::Tensor WithRows(const at::Tensor& tensor) {
  return tensor.stride(-1) == 1 ? tensor : tensor.contiguous();
}

// Three results, of norms that have a mean, and two.
using NormResults = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using RmsNormResults = std::tuple<at::Tensor, at::Tensor>;
// The type of the parameters; without any, the input's.
at::ScalarType NormParameterType(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                                 const std::optional<at::Tensor>& bias);
// By LibTorch's own kernels, whatever the types.
NormResults LayerNormOfTorch(const at::Tensor& input, at::IntArrayRef shape,
                             const std::optional<at::Tensor>& weight,
                             const std::optional<at::Tensor>& bias, double eps);
NormResults LayerNormBackwardOfTorch(const at::Tensor& gradient, const at::Tensor& input,
                                     at::IntArrayRef shape, const at::Tensor& mean,
                                     const at::Tensor& deviation,
                                     const std::optional<at::Tensor>& weight,
                                     const std::optional<at::Tensor>& bias,
                                     std::array<bool, 3> wanted);
// Throw c10::Error where the arguments of harmony::rms_norm, or of its backward, do not fit.
void CheckRmsNorm(const at::Tensor& input, const at::Tensor& weight);
void CheckRmsNormBackward(const at::Tensor& gradient, const at::Tensor& input,
                          const at::Tensor& weight, const at::Tensor& rstd,
                          const std::optional<at::Tensor>& other);

}  // namespace harmony::worker
