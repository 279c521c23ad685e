#pragma once

// What the layers are made of where devices differ: products, norms, attention, and the loops that
// ATen has no single operation for. The CPU has code of its own (cpu_primitives.cc); all other
// devices, and tests on the CPU, compute by ATen's operations and the device's row kernels
// (portable_primitives.cc). What both have in common is in functional.h and the layers.
//
// Tensors are contiguous where nothing else is said, of fp32 or bf16; sums and what norms keep of a
// row are fp32, and so are gradients of parameters, which are added to. What a function computes it
// rounds once. Results do not depend on addresses, nor, but for portable ones on the CPU, on the
// number of threads. Functions throw c10::Error. One thread.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/dtype.h"
#include "common/model/model_config.h"
#include "worker/device/compute_device.h"
#include "worker/device/device_tensor.h"
#include "worker/models/rope.h"

namespace harmony::worker {

// One microbatch, or in a forward that keeps nothing several: hidden states are [samples * tokens,
// C].
struct BatchShape {
  int64_t samples = 0;
  int64_t tokens = 0;
  int64_t microbatch = 0;  // samples of one
  int64_t rows() const { return samples * tokens; }
  int64_t microbatch_rows() const { return microbatch * tokens; }
};

// A parameter and its gradient; what is not bound is an undefined tensor.
struct Param {
  at::Tensor weight;
  at::Tensor gradient;
};

// LayerNorm when there is a bias, else RMSNorm, over the last dimension.
struct NormParam {
  Param weight;
  Param bias;
  double epsilon = 1e-5;
};
// Of N rows: [N, 1] of a LayerNorm, [N] of an RMSNorm.
struct NormSaved {
  at::Tensor mean;  // LayerNorm only
  at::Tensor rstd;
};

struct AttentionSaved {
  at::Tensor output;                  // [N, H * D]
  std::vector<at::Tensor> logsumexp;  // kept for the backward, where that needs it
};
struct AttentionGradients {
  at::Tensor dq;      // [b, H, T, D], of any strides
  at::Tensor dk, dv;  // [b, K, T, D]
};

// The last linear layer and the cross entropy of what it makes, forward and backward in one, in
// chunks of rows, so that the logits never exist whole.
struct LinearLoss {
  at::Tensor x;       // [N, C]
  at::Tensor weight;  // [V, C]
  at::Tensor bias;    // [V], fp32; undefined: none
  at::Tensor labels;  // int32 [N], below V; negative ones count nothing
  int64_t chunk_rows = 1;
  // Gradients of `scale` times the loss. Those of x are set; those of the weight are added to what
  // is there, or set where `sets_weight_gradient`; those of the bias are added.
  float scale = 1;
  at::Tensor x_gradient, weight_gradient, bias_gradient;
  bool sets_weight_gradient = false;
};

class Primitives {
 public:
  virtual ~Primitives() = default;

  // Memory of the device as a tensor of fp32, bf16 or int32, without copying.
  at::Tensor Wrap(DeviceAddress address, DType dtype, at::IntArrayRef shape) const;

  // c [M, N] = a [M, K] b [K, N], or += with `accumulate`. a and b may be transposed views. All are
  // of one type, or c is fp32 and, with `accumulate`, a and b are bf16.
  virtual void MatMul(at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
                      bool accumulate) const = 0;

  // sums [C] += dy [N, C] over its rows.
  virtual void AddSumOfRows(at::Tensor& sums, const at::Tensor& dy) const = 0;

  // Results go into the tensors that are given; those that are undefined are made.
  virtual void Norm(at::Tensor& y, const at::Tensor& x, const NormParam& param,
                    NormSaved& saved) const = 0;
  // Returns dx; may use dy's memory for it.
  virtual at::Tensor NormBackward(at::Tensor dy, const at::Tensor& x, const NormParam& param,
                                  const NormSaved& saved) const = 0;

  // Causal: q [b, H, T, D], k, v [b, K, T, D] over memory laid out as [b, T, H, D], of any strides
  // but the last; K divides H, query head h belongs to key head h / (H / K). The output goes into
  // the place that is given, else into one that is made.
  virtual void Attention(AttentionSaved& saved, const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v) const = 0;
  virtual AttentionGradients AttentionBackward(const at::Tensor& dy, const at::Tensor& q,
                                               const at::Tensor& k, const at::Tensor& v,
                                               const AttentionSaved& saved) const = 0;

  // out = activation(gate) * up, each rounded; `out` may be `gate`, and is made where it is
  // undefined. `rows`: of a microbatch.
  virtual void Gated(at::Tensor& out, const at::Tensor& gate, const at::Tensor& up,
                     model::Activation activation, int64_t rows) const = 0;
  // The gradient of the product becomes that of gate; dup, which is given, is set.
  virtual void GatedBackward(at::Tensor& gradient, at::Tensor& dup, const at::Tensor& gate,
                             const at::Tensor& up, model::Activation activation) const = 0;

  // Rotary embedding of rows [samples * tokens, heads * D] in place, in Hugging Face's
  // half-rotation layout. `inverse` rotates back (the backward).
  virtual void Rotate(at::Tensor& rows, const RopeTables& tables, BatchShape shape,
                      bool inverse) const = 0;

  // y[i] = table[ids[i]]. Returns the first row whose id the table lacks, or -1 when all are fine
  // (then and only then `y` is complete).
  virtual int64_t GatherRows(const at::Tensor& table, const at::Tensor& ids,
                             at::Tensor& y) const = 0;
  // gradient[ids[i]] += dy[i], in the order of i, but for ids that are `skip`. REQUIRES: ids as
  // GatherRows accepts them.
  virtual void ScatterAddRows(at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& dy,
                              int64_t skip) const = 0;
  // y[b, t] += positions[t].
  virtual void AddPositions(at::Tensor& y, const at::Tensor& positions, BatchShape shape) const = 0;
  // gradient[t] += dy[b, t], in the order of b.
  virtual void SumPositions(at::Tensor& gradient, const at::Tensor& dy, BatchShape shape) const = 0;

  // The sum of the cross entropies.
  virtual double RunLinearLoss(LinearLoss& loss) const = 0;

 protected:
  explicit Primitives(LayerTarget target);

  const c10::Device device_;
};

// Code of our own, and the kernels that eager PyTorch takes on the CPU.
const Primitives& CpuPrimitives();
// ATen's operations and, where it has none or several that each read and write all, the device's
// row kernels, on any device. `kernels` outlive it.
std::unique_ptr<const Primitives> MakePortablePrimitives(LayerTarget target,
                                                         const RowKernels& kernels);

}  // namespace harmony::worker
