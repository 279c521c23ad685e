#pragma once

// What the driver says of this machine's GPUs.

#include <vector>

#include "absl/status/statusor.h"
#include "common/cuda/driver.h"
#include "common/plan/gpus.h"

namespace harmony::cuda {

// Makes two contexts on each GPU for a moment, to see what is free and what a context takes. One
// that cannot be used is listed with its problem.
absl::StatusOr<std::vector<plan::Gpu>> ListGpus(const Driver& driver);

}  // namespace harmony::cuda
