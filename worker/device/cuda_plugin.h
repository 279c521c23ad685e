#pragma once

// What computes on GPUs is a library of its own, which harmony-worker loads when it is asked for a
// cuda device: the programs link no CUDA library, and start where there is none.

#include <memory>

#include "absl/status/statusor.h"
#include "common/plan/machine.h"
#include "worker/device/device_backend.h"

namespace harmony::worker {

// What the library's one function, of the name below, returns.
struct CudaPlugin {
  // BuildIdentity of the programs that it was built with; the rest is read only if it is ours.
  const char* build;
  // A device whose region `fd` holds.
  absl::StatusOr<std::unique_ptr<DeviceBackend>> (*open)(const plan::DeviceSpec& device, int fd);
};
using CudaPluginEntry = const CudaPlugin* (*)();
inline constexpr char kCudaPluginEntry[] = "harmony_cuda_plugin";

// FailedPrecondition: there is no such library here (common/cuda/plugin_path.h), it cannot be
// loaded, or belongs to another build; else an error of its `open`.
absl::StatusOr<std::unique_ptr<DeviceBackend>> OpenCudaBackend(const plan::DeviceSpec& device,
                                                               int fd);

}  // namespace harmony::worker
