#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>

#include "worker/graphs/operator_parts.h"
#include "worker/kernels/row_kernels.h"

namespace harmony::worker {

// Whether row kernels compute with such tensors: of fp32 or bf16, parameters of one type.
bool IsOfRows(const at::Tensor& input, const std::optional<at::Tensor>& weight,
              const std::optional<at::Tensor>& bias,
              const std::optional<at::Tensor>& gradient = std::nullopt);

// Norms and their backwards by a device's row kernels: each number is read and written once,
// whatever the parameters' type, and the sums of their gradients are fp32. REQUIRES: IsOfRows.
NormResults LayerNormByRows(const RowKernels& kernels, const at::Tensor& input,
                            at::IntArrayRef shape, const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, double eps);
NormResults LayerNormBackwardByRows(const RowKernels& kernels, const at::Tensor& gradient,
                                    const at::Tensor& input, at::IntArrayRef shape,
                                    const at::Tensor& mean, const at::Tensor& deviation,
                                    const std::optional<at::Tensor>& weight,
                                    const std::optional<at::Tensor>& bias,
                                    std::array<bool, 3> wanted);
RmsNormResults RmsNormByRows(const RowKernels& kernels, const at::Tensor& input,
                             const at::Tensor& weight, double eps);
RmsNormResults RmsNormBackwardByRows(const RowKernels& kernels, const at::Tensor& gradient,
                                     const at::Tensor& input, const at::Tensor& weight,
                                     const at::Tensor& rstd,
                                     const std::optional<at::Tensor>& other);

}  // namespace harmony::worker
