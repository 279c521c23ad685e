#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/ipc/fd_passing.h"
#include "common/plan/machine.h"
#include "common/runtime/attached_job.h"
#include "worker/device/compute_device.h"
#include "worker/layers/layer.h"

namespace harmony::worker {

// What implements devices and layers, chosen by what descriptions say. Nothing else in the worker
// names an implementation.

// Unimplemented names a device whose kind this build lacks.
absl::Status CheckDeviceKind(const plan::DeviceSpec& device);

// A device for one job: what is resident lies in `region`, which outlives it, the workspace has the
// given size. ResourceExhausted: the system lacks memory for it.
absl::StatusOr<std::unique_ptr<ComputeDevice>> OpenComputeDevice(const plan::DeviceSpec& device,
                                                                 const ipc::MappedRegion& region,
                                                                 Bytes workspace,
                                                                 int compute_threads);

// The layers of the job's model. Unimplemented: no implementation has both its layers and the
// device.
absl::StatusOr<LayerChain> BuildLayers(const runtime::AttachedJob& job,
                                       const plan::DeviceSpec& device);

}  // namespace harmony::worker
