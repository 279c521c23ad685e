#pragma once

// The memory of devices, made before the processes that use it and held by the launcher.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ipc/fd_passing.h"
#include "common/plan/gpus.h"
#include "common/plan/machine.h"

namespace harmony::client {

// The GPUs of this machine, as harmony-cuda finds them, which is started for it from `bin_dir`.
// FailedPrecondition: there is no driver or no GPU, or this build has no harmony-cuda.
absl::StatusOr<std::vector<plan::Gpu>> FindGpus(const std::string& bin_dir);

// One region for each device, in their order. Call from the main thread, which starts processes.
absl::StatusOr<std::vector<ipc::UniqueFd>> MakeDeviceRegions(
    const std::string& bin_dir, const std::vector<plan::DeviceSpec>& devices);

}  // namespace harmony::client
