#pragma once

#include <memory>

#include "common/ipc/fd_passing.h"
#include "worker/device/device_backend.h"

namespace harmony::worker {

// A sim device: `region` is its whole memory. The part beyond the resident one stays untouched, a
// workspace of that size is mapped apart: the cap covers both together.
std::unique_ptr<DeviceBackend> MakeSimBackend(ipc::MappedRegion region);

}  // namespace harmony::worker
