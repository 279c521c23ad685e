#include "worker/models/primitives.h"

#include <ATen/ops/from_blob.h>

#include <string>

#include "worker/device/cpu_memory.h"

namespace harmony::worker {
namespace {

c10::ScalarType NumbersOf(DType dtype) {
  if (dtype == DType::kI32) return c10::ScalarType::Int;
  TORCH_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "these layers compute in no ",
              std::string(ToString(dtype)));
  return dtype == DType::kBF16 ? c10::ScalarType::BFloat16 : c10::ScalarType::Float;
}

c10::Device DeviceOf(LayerTarget target) {
  if (target.kind == LayerTarget::Kind::kCpu) return c10::Device(c10::kCPU);
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(target.index));
}

}  // namespace

Primitives::Primitives(LayerTarget target) : device_(DeviceOf(target)) {}

at::Tensor Primitives::Wrap(DeviceAddress address, DType dtype, at::IntArrayRef shape) const {
  // LibTorch keeps the address of any device's memory as a pointer.
  return at::for_blob(HostPointer<void>(address), shape)
      .options(at::TensorOptions(NumbersOf(dtype)).device(device_))
      .target_device(device_)
      .make_tensor();
}

}  // namespace harmony::worker
