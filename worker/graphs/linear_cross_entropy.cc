#include "worker/graphs/linear_cross_entropy.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <vector>

#include "common/base/units.h"
#include "common/model/loss_chunks.h"
#include "worker/graphs/operator_parts.h"
#include "worker/models/primitives.h"

namespace harmony::worker {
namespace {

constexpr Bytes kLogits = MiB(16);  // of a chunk
constexpr int32_t kNoLabel = -1;    // of the kernel

std::vector<int32_t> LabelsOf(const at::Tensor& labels, int64_t ignored, int64_t classes) {
  const at::Tensor given = labels.contiguous();
  const auto* const from = given.const_data_ptr<int64_t>();
  std::vector<int32_t> made(static_cast<size_t>(given.numel()), kNoLabel);
  for (size_t i = 0; i < made.size(); ++i) {
    if (from[i] == ignored) continue;
    TORCH_CHECK_INDEX(from[i] >= 0 && from[i] < classes, "label ", from[i], " at position ", i,
                      " is not one of ", classes, " classes");
    made[i] = static_cast<int32_t>(from[i]);
  }
  return made;
}

void Check(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
           const at::Tensor& labels, const at::Tensor& scale) {
  TORCH_CHECK(IsMatrix(x) && IsMatrix(weight) && x.size(1) == weight.size(1) && weight.size(0) > 0,
              "x is ", x.sizes(), ", the weight ", weight.sizes());
  TORCH_CHECK(BiasFits(bias, weight.size(0)), "the bias does not fit a weight of ", weight.sizes());
  TORCH_CHECK(labels.scalar_type() == at::kLong && labels.dim() == 1 && labels.size(0) == x.size(0),
              "the labels are ", labels.scalar_type(), " ", labels.sizes(), " for ", x.sizes());
  TORCH_CHECK(scale.scalar_type() == at::kFloat && scale.numel() == 1, "the scale is no number");
}

LinearCrossEntropyResults LinearCrossEntropy(const at::Tensor& x, const at::Tensor& weight,
                                             const std::optional<at::Tensor>& bias,
                                             const at::Tensor& labels, int64_t ignored,
                                             const at::Tensor& scale) {
  return LinearCrossEntropyBy(CpuPrimitives(), x, weight, bias, labels, ignored, scale);
}

}  // namespace

LinearCrossEntropyResults LinearCrossEntropyBy(const Primitives& with, const at::Tensor& rows_of_x,
                                               const at::Tensor& given_weight,
                                               const std::optional<at::Tensor>& bias,
                                               const at::Tensor& given_labels, int64_t ignored,
                                               const at::Tensor& scale) {
  Check(rows_of_x, given_weight, bias, given_labels, scale);
  const at::Tensor x = rows_of_x.contiguous(), weight = given_weight.contiguous();
  const int64_t classes = weight.size(0);
  std::vector<int32_t> labels = LabelsOf(given_labels.cpu(), ignored, classes);
  LinearLoss linear;
  linear.x = x;
  linear.weight = weight;
  if (bias.has_value()) linear.bias = *bias;
  linear.labels = at::from_blob(labels.data(), {x.size(0)}, at::kInt).to(x.device());
  linear.chunk_rows = LossChunkRows(classes);
  linear.scale = scale.item<float>();
  linear.x_gradient = at::empty_like(x);
  linear.weight_gradient = at::empty_like(weight);
  if (x.size(0) == 0) linear.weight_gradient.zero_();
  linear.sets_weight_gradient = true;
  linear.bias_gradient = at::zeros({bias.has_value() ? classes : 0}, x.options());
  const double loss = with.RunLinearLoss(linear);
  return {at::full({}, static_cast<float>(loss), x.options()), linear.x_gradient,
          linear.weight_gradient, linear.bias_gradient};
}

int64_t LossChunkRows(int64_t classes) { return model::LossChunkRows(classes, kLogits); }

void DefineLinearCrossEntropy(torch::Library& library) {
  library.def(
      "linear_cross_entropy(Tensor x, Tensor weight, Tensor? bias, Tensor labels, int ignored, "
      "Tensor scale) -> (Tensor, Tensor, Tensor, Tensor)");
  library.impl("linear_cross_entropy",
               torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(LinearCrossEntropy)));
}

}  // namespace harmony::worker
