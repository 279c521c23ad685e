#pragma once

// `harmony export`: a checkpoint of a run as the directory that others read.

#include <cstdint>
#include <optional>
#include <string>

#include "client/commands/common.h"

namespace harmony::client {

struct ExportOptions {
  std::string run;                    // an output_dir, one of its checkpoints, or the id of a job
  std::optional<int64_t> checkpoint;  // its step; none: the newest
  std::string dtype;                  // "fp32", "bf16", "fp16"; empty: as in the source
  std::string output;                 // directory to make
};
// Needs no coordinator but to look a job's id up, and there the job database will do. Ctrl-C leaves
// nothing behind (exit code 130).
int ExportCommand(const GlobalOptions& global, const ExportOptions& options);

}  // namespace harmony::client
