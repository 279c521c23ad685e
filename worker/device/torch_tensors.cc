#include "worker/device/torch_tensors.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <string>

#include "worker/device/cpu_memory.h"

namespace harmony::worker {

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

Number NumberOf(c10::ScalarType type) {
  TORCH_CHECK(type == c10::kFloat || type == c10::kBFloat16, "row kernels compute in no ", type);
  return type == c10::kFloat ? Number::kF32 : Number::kBf16;
}

c10::Device TorchDeviceOf(LayerTarget target) {
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

}  // namespace harmony::worker
