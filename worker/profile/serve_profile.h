#pragma once

#include "common/runtime/program.h"

namespace harmony::worker {

// harmony-worker --profile: measures what the request asks for, and writes the answer. `device` -1:
// the host worker.
absl::Status ServeProfile(runtime::ProgramContext& context, int device);

}  // namespace harmony::worker
