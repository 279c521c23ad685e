#pragma once

// A linear layer and the cross entropy of what it makes, forward and backward in one operation of
// graphs that is not LibTorch's, so that the logits never exist whole.
//
//   harmony::linear_cross_entropy(Tensor x, Tensor weight, Tensor? bias, Tensor labels,
//       int ignored, Tensor scale) -> (Tensor, Tensor, Tensor, Tensor)
//
// x [N, C], weight [V, C], bias [V], labels int64 [N], scale a single float32. The sum of the cross
// entropies of the labels that are not `ignored`, and the gradients of `scale` times that by x,
// weight and bias (without one: of no elements).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "worker/models/primitives.h"

namespace torch {
class Library;
}

namespace harmony::worker {

// The rows of a chunk: a power of two, which the export counts the same.
int64_t LossChunkRows(int64_t classes);

using LinearCrossEntropyResults = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
// The operator, by what the device of its arguments computes by. Throws c10::Error where they do
// not fit each other.
LinearCrossEntropyResults LinearCrossEntropyBy(const Primitives& with, const at::Tensor& x,
                                               const at::Tensor& weight,
                                               const std::optional<at::Tensor>& bias,
                                               const at::Tensor& labels, int64_t ignored,
                                               const at::Tensor& scale);

void DefineLinearCrossEntropy(torch::Library& library);

}  // namespace harmony::worker
