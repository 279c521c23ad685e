#include "worker/models/linear_loss.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "worker/models/gemm.h"
#include "worker/models/kernels.h"
#include "worker/models/layer_params.h"

namespace harmony::worker {

double RunLinearLoss(LinearLoss& loss) {
  const int64_t rows = loss.x.size(0), classes = loss.weight.size(0);
  const bool biased = loss.bias.defined();
  const int64_t chunk_rows = std::min(rows, loss.chunk_rows);
  const at::Tensor weight_in_out = loss.weight.t();
  at::Tensor buffer = at::empty({chunk_rows, classes}, loss.x.options());
  std::vector<double> row_loss(static_cast<size_t>(rows));
  for (int64_t begin = 0; begin < rows; begin += chunk_rows) {
    const int64_t count = std::min(chunk_rows, rows - begin);
    at::Tensor logits = buffer.narrow(0, 0, count);
    const at::Tensor chunk = loss.x.narrow(0, begin, count);
    at::Tensor chunk_gradient = loss.x_gradient.narrow(0, begin, count);
    if (biased) logits.copy_(loss.bias.expand({count, classes}));
    MatMul(logits, chunk, weight_in_out, /*accumulate=*/biased);
    WithNumbersOf(logits, [&]<typename T>(T*) {
      kernels::CrossEntropy(logits.mutable_data_ptr<T>(), loss.labels + begin, count, classes,
                            loss.scale, row_loss.data() + begin);
    });
    MatMul(loss.weight_gradient, logits.t(), chunk,
           /*accumulate=*/begin > 0 || !loss.sets_weight_gradient);
    MatMul(chunk_gradient, logits, loss.weight, /*accumulate=*/false);
    if (biased) loss.bias_gradient.add_(logits.sum(0));
  }
  return std::accumulate(row_loss.begin(), row_loss.end(), 0.0);
}

}  // namespace harmony::worker
