#pragma once

// The pieces layers are made of, forward and hand-written backward, out of the primitives of a kind
// of device. Every gradient of a parameter is *added* to Param::gradient in place; no second dense
// gradient ever exists. A forward's results go into the tensors that it is given; those that are
// undefined are made.

#include <ATen/core/Tensor.h>

#include "common/model/model_config.h"
#include "worker/kernels/row_kernels.h"
#include "worker/models/layer_params.h"
#include "worker/models/primitives.h"

namespace harmony::worker::functional {

// ---- Projections: x [N, in] ----

void Linear(const Primitives& with, at::Tensor& y, const at::Tensor& x,
            const LinearParam& param);  // y [N, out]
// y = residual + Linear(x); y may be the residual itself.
void LinearResidual(const Primitives& with, at::Tensor& y, const at::Tensor& residual,
                    const at::Tensor& x, const LinearParam& param);
// Adds to the weight's and bias's gradients.
void LinearWeightGradient(const Primitives& with, const at::Tensor& dy, const at::Tensor& x,
                          const LinearParam& param);
at::Tensor LinearInputGradient(const Primitives& with, const at::Tensor& dy,
                               const LinearParam& param);  // [N, in]
// dx += LinearInputGradient(dy).
void LinearInputGradientAdd(const Primitives& with, at::Tensor& dx, const at::Tensor& dy,
                            const LinearParam& param);

// ---- Norms ----

NormParam GetNorm(const LayerParams& params, absl::string_view name, double epsilon);

// ---- Activation functions ----

void Activate(at::Tensor& y, const at::Tensor& x, model::Activation kind);
// So many rows at a time: ATen's last few elements of a call may have other bits than the rest.
void ActivateInPlace(at::Tensor& x, model::Activation kind, int64_t rows);
// dy becomes the gradient of the function's input x.
void ActivateBackwardInPlace(at::Tensor& dy, const at::Tensor& x, model::Activation kind);
// The factors of a gated product, as row kernels are told of them: contiguous tensors, or matrices
// whose rows are.
GatedRows RowsOfGated(const at::Tensor& gate, const at::Tensor& up, model::Activation kind);

}  // namespace harmony::worker::functional
