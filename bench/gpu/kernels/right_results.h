#pragma once

// What kernels should compute, in float64 on the CPU: the yardstick of kernels_check.cc. Arguments
// are those of the operators in docs/model_format.md, as float64; nothing here is called by a
// kernel that is checked.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace harmony::bench {

using Optional = std::optional<at::Tensor>;

struct AttentionCase {
  at::Tensor query, key, value, gradient;
  bool causal = false;
  Optional mask;
};
struct AttentionRight {
  at::Tensor output, logarithms, of_query, of_key, of_value;
};
// The scale is 1/sqrt(E).
AttentionRight RightAttention(const AttentionCase& from);

// A norm over rows of [rows, numbers], each of mean zero and deviation one, of which a weight and a
// bias belong to each of the columns: a layer norm. Other norms are brought into that form.
struct NormRight {
  at::Tensor output, mean, deviation, of_input, of_weight, of_bias;
};
// input and gradient [R, N]; weight and bias broadcast against them. Not centred: the mean is taken
// to be zero, as by RMSNorm.
NormRight RightNorm(const at::Tensor& input, const at::Tensor& gradient, const at::Tensor& weight,
                    const at::Tensor& bias, double epsilon, bool centred = true);

struct LossRight {
  at::Tensor loss, of_x, of_weight, of_bias;
};
LossRight RightLoss(const at::Tensor& x, const at::Tensor& weight, const Optional& bias,
                    const at::Tensor& labels, int64_t ignored, double scale);

}  // namespace harmony::bench
