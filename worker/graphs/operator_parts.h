#pragma once

// What the operators of Harmony's own (own_operators.h) are made of on every device.

#include <ATen/core/Tensor.h>

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

using LinearCrossEntropyResults = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
// Throws c10::Error when the operator's arguments do not fit each other.
void CheckLinearCrossEntropy(const at::Tensor& x, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias, const at::Tensor& labels,
                             const at::Tensor& scale);

}  // namespace harmony::worker
