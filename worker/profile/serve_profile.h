#pragma once

#include "common/runtime/program.h"

namespace harmony {

// harmony-worker --profile: measures what the request asks for, and writes the answer. `device` -1:
// the host worker.
absl::Status ServeProfile(ProgramContext& context, int device);

}  // namespace harmony
