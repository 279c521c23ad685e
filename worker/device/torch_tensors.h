#pragma once

// Memory, types and devices of the project's as LibTorch's. Functions throw c10::Error.

#include <ATen/core/Tensor.h>

#include "common/base/dtype.h"
#include "worker/device/compute_device.h"
#include "worker/device/device_tensor.h"
#include "worker/kernels/row_kernels.h"

namespace harmony::worker {

// Throws for a type that models do not compute in.
c10::ScalarType ScalarTypeOf(DType dtype);

// As row kernels know it, which throws for all but fp32 and bf16.
Number NumberOf(c10::ScalarType type);

// A device as LibTorch names it.
c10::Device TorchDeviceOf(LayerTarget target);

// A contiguous view of memory of `device`, which stays the caller's.
at::Tensor TensorOver(DeviceAddress address, DType dtype, at::IntArrayRef sizes,
                      c10::Device device);

}  // namespace harmony::worker
