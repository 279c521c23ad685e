#pragma once

// A gated product and its gradients, as operations of graphs that are not LibTorch's: it has them
// as two and four, and what is activated would be left to the backward.
//
//   harmony::gated(Tensor gate, Tensor up, str activation) -> Tensor
//   harmony::gated_backward(Tensor gradient, Tensor gate, Tensor up, str activation)
//       -> (Tensor, Tensor)
//
// docs/model_format.md says what they compute. The CPU does it by the operations that eager PyTorch
// takes there, to the same bits.

#include <ATen/core/Tensor.h>
#include <c10/util/string_view.h>

#include <tuple>

#include "worker/kernels/row_kernels.h"

namespace torch {
class Library;
}

namespace harmony::worker {

void DefineGated(torch::Library& library);

// The operators by a device's row kernels. Throw c10::Error where arguments do not fit.
using GatedGradients = std::tuple<at::Tensor, at::Tensor>;  // of gate and up
at::Tensor GatedByRows(const RowKernels& kernels, const at::Tensor& gate, const at::Tensor& up,
                       c10::string_view activation);
GatedGradients GatedBackwardByRows(const RowKernels& kernels, const at::Tensor& gradient,
                                   const at::Tensor& gate, const at::Tensor& up,
                                   c10::string_view activation);

}  // namespace harmony::worker
