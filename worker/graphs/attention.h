#pragma once

// Attention, forward and backward, as two operations of graphs that are not LibTorch's. LibTorch
// has a kernel for each kind of device, with another name and other arguments each; a graph, which
// runs on any device, names none of them.
//
//   harmony::attention(Tensor query, Tensor key, Tensor value, bool causal, Tensor? mask,
//       float? scale) -> (Tensor, Tensor)
//   harmony::attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value,
//       Tensor output, Tensor logarithms, bool causal, Tensor? mask, float? scale)
//       -> (Tensor, Tensor, Tensor)
//
// docs/model_format.md says what they compute. The CPU does it by the kernels that eager PyTorch
// takes there, to the same bits.

namespace torch {
class Library;
}

namespace harmony::worker {

void DefineAttention(torch::Library& library);

}  // namespace harmony::worker
