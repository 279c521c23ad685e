#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/runtime/program.h"

namespace harmony::worker {

// The device of context.device, which is a number. InvalidArgument when there is none of it.
absl::StatusOr<plan::DeviceSpec> FindDevice(const runtime::ProgramContext& context);

// The worker of device context.device: one compute lane. Returns after a termination signal.
absl::Status ServeDevice(runtime::ProgramContext& context, runtime::TerminationSignals& signals);

// The host worker: lanes host_compute and host_io.
absl::Status ServeHost(runtime::ProgramContext& context, runtime::TerminationSignals& signals);

}  // namespace harmony::worker
