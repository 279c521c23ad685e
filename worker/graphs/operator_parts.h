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

using LinearCrossEntropyResults = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
// Throws c10::Error when the operator's arguments do not fit each other.
void CheckLinearCrossEntropy(const at::Tensor& x, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias, const at::Tensor& labels,
                             const at::Tensor& scale);

}  // namespace harmony::worker
