#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "worker/host/host_context.h"

namespace harmony::worker {

// Writes checkpoint-<version> of parameters and moments that are all committed at `version` (and
// stay so), then removes checkpoints beyond save_total_limit. Nothing to do when a valid one of
// this job and version is there.
absl::Status WriteCheckpoint(const HostContext& context, int64_t version);

// output_dir/final: the trained model as a Hugging Face directory.
absl::Status WriteFinalModel(const HostContext& context, int64_t version);

// Removes what a killed writer left in output_dir: half-written checkpoints and final directories.
// REQUIRES: no other writer is alive.
void RemovePartialCheckpoints(const std::string& output_dir);

}  // namespace harmony::worker
