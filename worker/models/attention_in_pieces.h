#pragma once

// Attention, forward and backward, out of LibTorch's products and sums, which every device has. Of
// the scores, a number for each query and key, only some exist at a time. What it computes is what
// docs/model_format.md says of harmony::attention.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace harmony::worker {

// The output, and the logarithms of what the softmax divides by.
using AttentionResults = std::tuple<at::Tensor, at::Tensor>;
// The gradients of query, key and value.
using AttentionBackwardResults = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Results lie in memory as those of the CPU's kernels do, since graphs take views of them. Throw
// c10::Error when the arguments do not fit each other.
AttentionResults AttentionInPieces(const at::Tensor& query, const at::Tensor& key,
                                   const at::Tensor& value, bool causal,
                                   const std::optional<at::Tensor>& mask,
                                   std::optional<double> scale);
AttentionBackwardResults AttentionInPiecesBackward(
    const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& output, const at::Tensor& logarithms, bool causal,
    const std::optional<at::Tensor>& mask, std::optional<double> scale);

}  // namespace harmony::worker
