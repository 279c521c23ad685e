#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/runtime/program.h"
#include "swapper/transfer/copier.h"

namespace harmony::swapper {

// The copier of this machine's kind of devices, whose regions were inherited. The context's segment
// outlives it. FailedPrecondition: a region is missing, there is no driver, or this build is
// without CUDA.
absl::StatusOr<std::unique_ptr<Copier>> OpenCopier(const runtime::ProgramContext& context);

}  // namespace harmony::swapper
