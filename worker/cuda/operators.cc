#include "worker/cuda/operators.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <array>
#include <optional>

#include "worker/cuda/kernels.h"
#include "worker/cuda/row_kernels.h"
#include "worker/graphs/gated.h"
#include "worker/graphs/linear_cross_entropy.h"
#include "worker/graphs/norms_by_rows.h"
#include "worker/graphs/operator_parts.h"
#include "worker/graphs/rotary.h"

namespace harmony::worker::cuda {
namespace {

at::Tensor DropoutMaskOnCuda(const at::Tensor& keys, int64_t layer, int64_t number,
                             at::IntArrayRef shape, int64_t dimension, double p) {
  return MakeDropoutMask(keys, layer, number, shape, dimension, p, [](const DropoutDraw& draw) {
    DropoutMask(draw.keys, draw.samples, draw.elements, draw.stream, draw.threshold, draw.mask,
                nullptr);
  });
}

LinearCrossEntropyResults LinearCrossEntropyOnCuda(const at::Tensor& x, const at::Tensor& weight,
                                                   const std::optional<at::Tensor>& bias,
                                                   const at::Tensor& labels, int64_t ignored,
                                                   const at::Tensor& scale) {
  const auto with =
      MakePortablePrimitives({LayerTarget::Kind::kCuda, x.get_device()}, CudaRowKernels());
  return LinearCrossEntropyBy(*with, x, weight, bias, labels, ignored, scale);
}

NormResults LayerNormOnCuda(const at::Tensor& input, at::IntArrayRef shape,
                            const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, double eps) {
  if (!IsOfRows(input, weight, bias)) return LayerNormOfTorch(input, shape, weight, bias, eps);
  return LayerNormByRows(CudaRowKernels(), input, shape, weight, bias, eps);
}

NormResults LayerNormBackwardOnCuda(const at::Tensor& gradient, const at::Tensor& input,
                                    at::IntArrayRef shape, const at::Tensor& mean,
                                    const at::Tensor& deviation,
                                    const std::optional<at::Tensor>& weight,
                                    const std::optional<at::Tensor>& bias,
                                    std::array<bool, 3> wanted) {
  if (!IsOfRows(input, weight, bias, gradient)) {
    return LayerNormBackwardOfTorch(gradient, input, shape, mean, deviation, weight, bias, wanted);
  }
  return LayerNormBackwardByRows(CudaRowKernels(), gradient, input, shape, mean, deviation, weight,
                                 bias, wanted);
}

RmsNormResults RmsNormOnCuda(const at::Tensor& input, const at::Tensor& weight, double eps) {
  return RmsNormByRows(CudaRowKernels(), input, weight, eps);
}

RmsNormResults RmsNormBackwardOnCuda(const at::Tensor& gradient, const at::Tensor& input,
                                     const at::Tensor& weight, const at::Tensor& rstd,
                                     const std::optional<at::Tensor>& other) {
  return RmsNormBackwardByRows(CudaRowKernels(), gradient, input, weight, rstd, other);
}

at::Tensor GatedOnCuda(const at::Tensor& gate, const at::Tensor& up, c10::string_view activation) {
  return GatedByRows(CudaRowKernels(), gate, up, activation);
}

GatedGradients GatedBackwardOnCuda(const at::Tensor& gradient, const at::Tensor& gate,
                                   const at::Tensor& up, c10::string_view activation) {
  return GatedBackwardByRows(CudaRowKernels(), gradient, gate, up, activation);
}

at::Tensor RotaryOnCuda(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
                        at::IntArrayRef order) {
  return RotaryByRows(CudaRowKernels(), x, cosines, sines, order);
}

at::Tensor RotaryBackwardOnCuda(const at::Tensor& gradient, const at::Tensor& cosines,
                                const at::Tensor& sines, at::IntArrayRef order) {
  return RotaryBackwardByRows(CudaRowKernels(), gradient, cosines, sines, order);
}

}  // namespace

void RegisterOperators() {
  static const auto* const library = [] {
    auto* made = new torch::Library(torch::Library::IMPL, "harmony", c10::DispatchKey::CUDA,
                                    __FILE__, __LINE__);
    made->impl("dropout_mask", TORCH_FN(DropoutMaskOnCuda));
    made->impl("gated", TORCH_FN(GatedOnCuda));
    made->impl("gated_backward", TORCH_FN(GatedBackwardOnCuda));
    made->impl("linear_cross_entropy", TORCH_FN(LinearCrossEntropyOnCuda));
    made->impl("layer_norm", TORCH_FN(LayerNormOnCuda));
    made->impl("layer_norm_backward", TORCH_FN(LayerNormBackwardOnCuda));
    made->impl("rms_norm", TORCH_FN(RmsNormOnCuda));
    made->impl("rms_norm_backward", TORCH_FN(RmsNormBackwardOnCuda));
    made->impl("rotary", TORCH_FN(RotaryOnCuda));
    made->impl("rotary_backward", TORCH_FN(RotaryBackwardOnCuda));
    return made;
  }();
  static_cast<void>(library);
}

}  // namespace harmony::worker::cuda
