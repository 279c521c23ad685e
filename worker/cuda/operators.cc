#include "worker/cuda/operators.h"

#include <ATen/Functions.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>

#include "worker/cuda/kernels.h"
#include "worker/graphs/linear_cross_entropy.h"
#include "worker/graphs/operator_parts.h"

namespace harmony::worker::cuda {
namespace {

at::Tensor DropoutMaskOnCuda(const at::Tensor& keys, int64_t layer, int64_t number,
                             at::IntArrayRef shape, int64_t dimension, double p) {
  return MakeDropoutMask(keys, layer, number, shape, dimension, p, [](const DropoutDraw& draw) {
    DropoutMask(draw.keys, draw.samples, draw.elements, draw.stream, draw.threshold, draw.mask,
                nullptr);
  });
}

// As the CPU's, in chunks of rows, so that the logits never exist whole.
LinearCrossEntropyResults LinearCrossEntropyOnCuda(const at::Tensor& rows_of_x,
                                                   const at::Tensor& given_weight,
                                                   const std::optional<at::Tensor>& bias,
                                                   const at::Tensor& labels, int64_t ignored,
                                                   const at::Tensor& scale) {
  CheckLinearCrossEntropy(rows_of_x, given_weight, bias, labels, scale);
  const at::Tensor x = rows_of_x.contiguous(), weight = given_weight.contiguous();
  const int64_t rows = x.size(0), classes = weight.size(0);
  const at::Tensor counts = labels.ne(ignored);
  const at::Tensor outside = counts.logical_and(labels.lt(0).logical_or(labels.ge(classes)));
  TORCH_CHECK_INDEX(!outside.any().item<bool>(), "a label is not one of ", classes, " classes");
  const at::Tensor chosen = at::where(counts, labels, at::zeros_like(labels)).unsqueeze(1);
  const at::Tensor factor = counts.to(at::kFloat).mul(scale).unsqueeze(1);
  at::Tensor x_gradient = at::empty_like(x), weight_gradient = at::zeros_like(weight);
  at::Tensor bias_gradient = at::zeros({bias.has_value() ? classes : 0}, x.options());
  at::Tensor loss = at::zeros({}, x.options().dtype(at::kDouble));
  const int64_t chunk = LossChunkRows(classes);
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    const at::Tensor part = x.narrow(0, begin, count), label = chosen.narrow(0, begin, count);
    at::Tensor logits = at::mm(part, weight.t());
    if (bias.has_value()) logits.add_(*bias);
    const at::Tensor sum = at::logsumexp(logits, {1}, /*keepdim=*/true);
    const at::Tensor each = sum.sub(logits.gather(1, label)).squeeze(1);
    loss.add_(each.to(at::kDouble).mul(counts.narrow(0, begin, count)).sum());
    // From here on their gradients: of each row one class is the right one.
    logits.sub_(sum).exp_();
    logits.scatter_(1, label, logits.gather(1, label).sub(1));
    logits.mul_(factor.narrow(0, begin, count));
    weight_gradient.addmm_(logits.t(), part);
    at::Tensor part_gradient = x_gradient.narrow(0, begin, count);
    at::mm_out(part_gradient, logits, weight);
    if (bias.has_value()) bias_gradient.add_(logits.sum(0));
  }
  return {loss.to(at::kFloat), x_gradient, weight_gradient, bias_gradient};
}

}  // namespace

void RegisterOperators() {
  static const auto* const library = [] {
    auto* made = new torch::Library(torch::Library::IMPL, "harmony", c10::DispatchKey::CUDA,
                                    __FILE__, __LINE__);
    made->impl("dropout_mask", TORCH_FN(DropoutMaskOnCuda));
    made->impl("linear_cross_entropy", TORCH_FN(LinearCrossEntropyOnCuda));
    return made;
  }();
  static_cast<void>(library);
}

}  // namespace harmony::worker::cuda
