#include "worker/graphs/tensors.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <string>
#include <vector>

#include "worker/device/cpu_memory.h"

namespace harmony::worker {
namespace {

// Numbers. LibTorch's addition on the CPU makes a copy of all that it adds in the type of the sum,
// which would be a temporary as large as the largest weight; its GPU kernels convert as they go.
constexpr int64_t kWidenedAtOnce = int64_t{1} << 18;

}  // namespace

c10::ScalarType ScalarTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return c10::ScalarType::Float;
    case DType::kBF16:
      return c10::ScalarType::BFloat16;
    case DType::kF16:
      return c10::ScalarType::Half;
    case DType::kF64:
      return c10::ScalarType::Double;
    case DType::kI64:
      return c10::ScalarType::Long;
    case DType::kI32:
      return c10::ScalarType::Int;
    case DType::kI16:
      return c10::ScalarType::Short;
    case DType::kI8:
      return c10::ScalarType::Char;
    case DType::kU8:
      return c10::ScalarType::Byte;
    case DType::kBool:
      return c10::ScalarType::Bool;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kU64:
    case DType::kU32:
    case DType::kU16:
      break;
  }
  TORCH_CHECK(false, "no type of exported models: ", std::string(ToString(dtype)));
}

c10::Device TorchDeviceOf(const ComputeDevice& device) {
  const LayerTarget target = device.target();
  if (target.kind == LayerTarget::Kind::kCpu) return c10::Device(c10::kCPU);
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(target.index));
}

at::Tensor TensorOver(DeviceAddress address, DType dtype, at::IntArrayRef sizes,
                      c10::Device device) {
  // LibTorch keeps the address of any device's memory as a pointer.
  return at::for_blob(HostPointer<void>(address), sizes)
      .options(at::TensorOptions(ScalarTypeOf(dtype)).device(device))
      .target_device(device)
      .make_tensor();
}

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
