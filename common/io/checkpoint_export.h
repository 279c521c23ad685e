#pragma once

// A checkpoint of a run as the directory that others read: what `final/` is, of any step.

#include <atomic>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/base/dtype.h"

namespace harmony::io {

struct CheckpointExport {
  std::string checkpoint;      // its directory
  std::string directory;       // to be made; what is there is replaced, so callers look before
  std::optional<DType> dtype;  // F32, BF16 or F16 for all weights; none: as in final/
};

// Verifies the checkpoint and writes its weights by ExportModel: without a dtype the bytes that
// `final/` would have at that step. Rounds to nearest, ties to even. Where a config.json names the
// type of its weights, it names the one that is asked for. DataLoss: the checkpoint is damaged;
// NotFound: the model.json of an exported model, which checkpoints do not hold, is gone; OutOfRange
// names the tensor with a number that is finite and would not be in its new type. Aborted once
// `cancelled` is set, which this function does too when it gives up half-way.
absl::Status ExportCheckpoint(const CheckpointExport& what, std::atomic<bool>* cancelled);

}  // namespace harmony::io
