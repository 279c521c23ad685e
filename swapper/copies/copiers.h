#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/runtime/program.h"
#include "swapper/copies/copy_service.h"
#include "swapper/transfer/copier.h"

namespace harmony::swapper {

// The copier of this machine's kind of devices, whose regions were inherited; it carries out those
// copies and no others. The context's segment outlives it. FailedPrecondition: a region is missing,
// there is no driver, or this build is without CUDA.
absl::StatusOr<std::unique_ptr<Copier>> OpenCopier(const runtime::ProgramContext& context,
                                                   const Copies& copies);

}  // namespace harmony::swapper
