#include "worker/graphs/tensors.h"

#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <string>
#include <vector>

namespace harmony::worker {
namespace {

// Numbers. LibTorch's addition on the CPU makes a copy of all that it adds in the type of the sum,
// which would be a temporary as large as the largest weight; its GPU kernels convert as they go.
constexpr int64_t kWidenedAtOnce = int64_t{1} << 18;

}  // namespace

at::Tensor Wrap(const DeviceTensor& tensor, const model::ExportedTensor& type, int64_t samples,
                c10::Device device) {
  const std::vector<int64_t> shape = type.ShapeFor(samples);
  TORCH_CHECK(tensor.address, "'", type.name, "' is not bound");
  TORCH_CHECK(tensor.dtype == type.dtype && tensor.elements() == c10::multiply_integers(shape), "'",
              type.name, "' is bound to a tensor of another type or size");
  return TensorOver(tensor.address, type.dtype, shape, device);
}

void CheckFits(const at::Tensor& made, const at::Tensor& place, absl::string_view what) {
  TORCH_CHECK(made.sizes() == place.sizes() && made.scalar_type() == place.scalar_type(), "the ",
              std::string(what), " is ", made.scalar_type(), " ", made.sizes(), ", must be ",
              place.scalar_type(), " ", place.sizes());
}

void PutInto(const at::Tensor& place, const at::Tensor& made, absl::string_view what) {
  CheckFits(made, place, what);
  if (made.const_data_ptr() != place.const_data_ptr()) place.copy_(made);
}

void AddInto(const at::Tensor& sum, const at::Tensor& made) {
  const bool in_pieces =
      made.is_cpu() && made.scalar_type() != sum.scalar_type() && made.numel() > kWidenedAtOnce;
  if (!in_pieces) {
    sum.add_(made);
    return;
  }
  const int64_t rows = made.size(0);
  const int64_t most = std::max<int64_t>(kWidenedAtOnce / (made.numel() / rows), 1);
  for (int64_t row = 0; row < rows; row += most) {
    const int64_t count = std::min(most, rows - row);
    sum.narrow(0, row, count).add_(made.narrow(0, row, count));
  }
}

}  // namespace harmony::worker
