#pragma once

// Rotary embedding by tables and its gradient, as operations of graphs that are not LibTorch's: it
// takes five and seven, of which each reads and writes all numbers.
//
//   harmony::rotary(Tensor x, Tensor cos, Tensor sin, int[] order) -> Tensor
//   harmony::rotary_backward(Tensor gradient, Tensor cos, Tensor sin, int[] order) -> Tensor
//
// docs/model_format.md says what they compute. The CPU does it by LibTorch's operations, to the
// bits of eager PyTorch.

#include <ATen/core/Tensor.h>

#include "worker/kernels/row_kernels.h"

namespace torch {
class Library;
}

namespace harmony::worker {

void DefineRotary(torch::Library& library);

// The operators by a device's row kernels. Throw c10::Error where arguments do not fit.
at::Tensor RotaryByRows(const RowKernels& kernels, const at::Tensor& x, const at::Tensor& cosines,
                        const at::Tensor& sines, at::IntArrayRef order);
at::Tensor RotaryBackwardByRows(const RowKernels& kernels, const at::Tensor& gradient,
                                const at::Tensor& cosines, const at::Tensor& sines,
                                at::IntArrayRef order);

}  // namespace harmony::worker
