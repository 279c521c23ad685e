#pragma once

// The pieces layers are made of, forward and hand-written backward. Every gradient of a parameter
// is *added* to Param::gradient in place; no second dense gradient ever exists. A forward's
// results go into the tensors that it is given; those that are undefined are made.

#include <ATen/core/Tensor.h>

#include <vector>

#include "common/model/model_config.h"
#include "worker/models/layer_params.h"

namespace harmony::worker::functional {

// ---- Projections: x [N, in] ----

void Linear(at::Tensor& y, const at::Tensor& x, const LinearParam& param);  // y [N, out]
// y = residual + Linear(x); y may be the residual itself.
void LinearResidual(at::Tensor& y, const at::Tensor& residual, const at::Tensor& x,
                    const LinearParam& param);
// Adds to the weight's and bias's gradients.
void LinearWeightGradient(const at::Tensor& dy, const at::Tensor& x, const LinearParam& param);
at::Tensor LinearInputGradient(const at::Tensor& dy, const LinearParam& param);  // [N, in]
// dx += LinearInputGradient(dy).
void LinearInputGradientAdd(at::Tensor& dx, const at::Tensor& dy, const LinearParam& param);

// ---- Norms over the last dimension: LayerNorm when there is a bias, else RMSNorm ----

struct NormParam {
  Param weight;
  Param bias;  // LayerNorm only
  double epsilon = 1e-5;
};
struct NormSaved {
  at::Tensor mean;  // LayerNorm only
  at::Tensor rstd;
};
NormParam GetNorm(const LayerParams& params, absl::string_view name, double epsilon);
void Norm(at::Tensor& y, const at::Tensor& x, const NormParam& param, NormSaved& saved);
// Returns dx; may use dy's memory for it.
at::Tensor NormBackward(at::Tensor dy, const at::Tensor& x, const NormParam& param,
                        const NormSaved& saved);

// ---- Activation functions ----

void Activate(at::Tensor& y, const at::Tensor& x, model::Activation kind);
// So many rows at a time: ATen's last few elements of a call may have other bits than the rest.
void ActivateInPlace(at::Tensor& x, model::Activation kind, int64_t rows);
// dy becomes the gradient of the function's input x.
void ActivateBackwardInPlace(at::Tensor& dy, const at::Tensor& x, model::Activation kind);

// ---- Causal attention: q [b, H, T, D], k, v [b, K, T, D] over memory laid out as [b, T, H, D], of
// any strides but the last; K divides H, query head h belongs to key head h / (H / K) ----

struct AttentionSaved {
  at::Tensor output;                  // [N, H * D], contiguous
  std::vector<at::Tensor> logsumexp;  // kept for the backward, one for each pass (see .cc)
};
void Attention(AttentionSaved& saved, const at::Tensor& q, const at::Tensor& k,
               const at::Tensor& v);

struct AttentionGradients {
  at::Tensor dq;      // [b, H, T, D]
  at::Tensor dk, dv;  // [b, K, T, D]
};
AttentionGradients AttentionBackward(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                                     const at::Tensor& v, const AttentionSaved& saved);

}  // namespace harmony::worker::functional
