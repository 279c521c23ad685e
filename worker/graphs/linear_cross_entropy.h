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

#include <cstdint>

namespace torch {
class Library;
}

namespace harmony::worker {

// The rows of a chunk: a power of two, which the export counts the same.
int64_t LossChunkRows(int64_t classes);

void DefineLinearCrossEntropy(torch::Library& library);

}  // namespace harmony::worker
