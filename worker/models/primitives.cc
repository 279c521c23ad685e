#include "worker/models/primitives.h"

#include <string>

#include "worker/device/torch_tensors.h"

namespace harmony::worker {
Primitives::Primitives(LayerTarget target) : device_(TorchDeviceOf(target)) {}

at::Tensor Primitives::Wrap(DeviceAddress address, DType dtype, at::IntArrayRef shape) const {
  TORCH_CHECK(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kI32,
              "these layers compute in no ", std::string(ToString(dtype)));
  return TensorOver(address, dtype, shape, device_);
}

}  // namespace harmony::worker
