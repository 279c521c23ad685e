#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/runtime/program.h"

namespace harmony {

// The device of context.device, which is a number. InvalidArgument when there is none of it.
absl::StatusOr<DeviceSpec> FindDevice(const ProgramContext& context);

// The worker of device context.device: one compute lane. Returns after a termination signal.
absl::Status ServeDevice(ProgramContext& context, TerminationSignals& signals);

// The host worker: lanes host_compute and host_io.
absl::Status ServeHost(ProgramContext& context, TerminationSignals& signals);

}  // namespace harmony
