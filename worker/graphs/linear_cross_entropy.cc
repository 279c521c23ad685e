#include "worker/graphs/linear_cross_entropy.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "common/base/units.h"
#include "worker/models/gemm.h"
#include "worker/models/kernels.h"

namespace harmony::worker {
namespace {

constexpr Bytes kLogits = MiB(16);  // of a chunk, but for kLeastRows of very many classes
constexpr int64_t kLeastRows = 16, kMostRows = 1024;
constexpr int32_t kNoLabel = -1;  // of the kernel

using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

void Check(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
           const at::Tensor& labels, const at::Tensor& scale) {
  const auto matrix = [](const at::Tensor& tensor) {
    return tensor.dim() == 2 && tensor.scalar_type() == at::kFloat;
  };
  TORCH_CHECK(matrix(x) && matrix(weight) && x.size(1) == weight.size(1) && weight.size(0) > 0,
              "x is ", x.sizes(), ", the weight ", weight.sizes());
  const bool fits = !bias.has_value() || (bias->scalar_type() == at::kFloat && bias->dim() == 1 &&
                                          bias->size(0) == weight.size(0));
  TORCH_CHECK(fits, "the bias does not fit a weight of ", weight.sizes());
  TORCH_CHECK(labels.scalar_type() == at::kLong && labels.dim() == 1 && labels.size(0) == x.size(0),
              "the labels are ", labels.scalar_type(), " ", labels.sizes(), " for ", x.sizes());
  TORCH_CHECK(scale.scalar_type() == at::kFloat && scale.numel() == 1, "the scale is no number");
}

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

Results LinearCrossEntropy(const at::Tensor& rows_of_x, const at::Tensor& given_weight,
                           const std::optional<at::Tensor>& bias, const at::Tensor& given_labels,
                           int64_t ignored, const at::Tensor& scale) {
  Check(rows_of_x, given_weight, bias, given_labels, scale);
  const at::Tensor x = rows_of_x.contiguous(), weight = given_weight.contiguous();
  const int64_t rows = x.size(0), classes = weight.size(0);
  const std::vector<int32_t> labels = LabelsOf(given_labels, ignored, classes);
  const auto factor = scale.item<float>();

  at::Tensor of_x = at::empty_like(x), of_weight = at::empty_like(weight);
  at::Tensor of_bias = at::zeros({bias.has_value() ? classes : 0}, x.options());
  if (rows == 0) of_weight.zero_();
  const int64_t chunk_rows = std::min(rows, LossChunkRows(classes));
  at::Tensor buffer = at::empty({chunk_rows, classes}, x.options());
  std::vector<double> row_loss(static_cast<size_t>(rows));
  for (int64_t begin = 0; begin < rows; begin += chunk_rows) {
    const int64_t count = std::min(chunk_rows, rows - begin);
    at::Tensor logits = buffer.narrow(0, 0, count);
    const at::Tensor chunk = x.narrow(0, begin, count);
    at::Tensor of_chunk = of_x.narrow(0, begin, count);
    if (bias.has_value()) logits.copy_(bias->expand({count, classes}));
    MatMul(logits, chunk, weight.t(), /*accumulate=*/bias.has_value());
    kernels::CrossEntropy(logits.mutable_data_ptr<float>(), labels.data() + begin, count, classes,
                          factor, row_loss.data() + begin);
    MatMul(of_weight, logits.t(), chunk, /*accumulate=*/begin > 0);
    MatMul(of_chunk, logits, weight, /*accumulate=*/false);
    if (bias.has_value()) of_bias.add_(logits.sum(0));
  }
  double loss = 0;
  for (double row : row_loss) loss += row;
  return {at::full({}, static_cast<float>(loss), x.options()), of_x, of_weight, of_bias};
}

}  // namespace

int64_t LossChunkRows(int64_t classes) {
  const int64_t most = kLogits.count() / static_cast<int64_t>(sizeof(float)) / classes;
  int64_t rows = kLeastRows;
  while (rows * 2 <= most && rows < kMostRows) rows *= 2;
  return rows;
}

void RegisterLinearCrossEntropy() {
  static const auto* const library = [] {
    auto* made =
        new torch::Library(torch::Library::FRAGMENT, "harmony", std::nullopt, __FILE__, __LINE__);
    made->def(
        "linear_cross_entropy(Tensor x, Tensor weight, Tensor? bias, Tensor labels, int ignored, "
        "Tensor scale) -> (Tensor, Tensor, Tensor, Tensor)");
    made->impl("linear_cross_entropy",
               torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(LinearCrossEntropy)));
    return made;
  }();
  static_cast<void>(library);
}

}  // namespace harmony::worker
