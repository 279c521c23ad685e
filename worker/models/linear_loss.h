#pragma once

// The last linear layer and the cross entropy of what it makes, forward and backward in one, in
// chunks of rows, so that the logits never exist whole.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace harmony::worker {

struct LinearLoss {
  at::Tensor x;                     // [N, C]
  at::Tensor weight;                // [V, C]
  at::Tensor bias;                  // [V]; undefined: none
  const int32_t* labels = nullptr;  // [N], below V; negative ones count nothing
  int64_t chunk_rows = 1;
  // Gradients of `scale` times the loss. Those of x are set; those of the weight are added to what
  // is there, or set where `sets_weight_gradient`; those of the bias are added.
  float scale = 1;
  at::Tensor x_gradient, weight_gradient, bias_gradient;
  bool sets_weight_gradient = false;
};

// The sum of the cross entropies. All tensors are contiguous fp32.
double RunLinearLoss(LinearLoss& loss);

}  // namespace harmony::worker
