#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/plan/machine.h"
#include "common/runtime/attached_job.h"
#include "common/runtime/program.h"
#include "worker/device/device_backend.h"
#include "worker/layers/layer.h"

namespace harmony::worker {

// What implements devices and layers, chosen by what descriptions say. Nothing else in the worker
// names an implementation.

// The backend of a device whose region was inherited. FailedPrecondition: it was not, or this
// machine or build lacks what that kind of device needs.
absl::StatusOr<std::unique_ptr<DeviceBackend>> OpenBackend(const runtime::ProgramContext& context,
                                                           const plan::DeviceSpec& device);

// The layers of the job's model. The device outlives them.
absl::StatusOr<LayerChain> BuildLayers(const runtime::AttachedJob& job, ComputeDevice& device);

}  // namespace harmony::worker
