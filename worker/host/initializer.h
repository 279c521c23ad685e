#pragma once

#include "absl/status/status.h"
#include "worker/host/host_context.h"
#include "worker/optimizer/thread_pool.h"

namespace harmony::worker {

// Fills parameters and moments of all blocks in their final place (from the checkpoint to resume
// from, the model directory, or random values) and commits them at HostJob::first_step. Does
// nothing when all are committed at it; starts over when only some are.
absl::Status InitializeParameters(const HostContext& context, ThreadPool& pool);

}  // namespace harmony::worker
