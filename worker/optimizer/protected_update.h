#pragma once

// The crash-consistent update of one block in the shared segment.
//
//   parameter clean(t): headers of all chunk cursors are written, position 0; moments, then the
//     parameter turn updating(t+1)
//   parameter updating(t+1): chunks are overwritten in place, each behind its cursor; done,
//   moments,
//     then the parameter turn clean(t+1)
//
// A process may be killed at any instruction of this; calling it again (in any process, with any
// number of threads) completes the update with the same bits, and does nothing once it is done.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/command/objects.h"
#include "common/ipc/segment.h"
#include "common/model/model_spec.h"
#include "worker/optimizer/optimizer.h"

namespace harmony::worker {

struct ProtectedUpdate {
  int block = 0;
  StepHyper hyper;                         // leads to version hyper.step
  absl::Span<const int> gradient_records;  // as BlockGradient has them
};

// FailedPrecondition when records are not in a state the update can start or go on from (names the
// object); DataLoss when a cursor is damaged. Then nothing has been changed. OutOfRange when a sum
// of several gradients is not finite: the update is then not committed, and the run must end, since
// its state is lost (going on would commit it).
absl::Status UpdateObject(ipc::Segment& segment, const model::ModelSpec& model,
                          const command::ObjectTableLayout& layout,
                          const OptimizerSettings& settings, const ProtectedUpdate& update,
                          ThreadPool& pool, Isa isa = BestIsa());

// The buffers of a block in the segment, where PersistentOffset and MasterOffset place them.
BlockState StateInSegment(const ipc::Segment& segment, const model::ModelSpec& model, int moments,
                          int block);

// The gradient of a block, from its committed records. FailedPrecondition unless
// all are clean at `version` and have the block's size.
absl::StatusOr<BlockGradient> GradientFromRecords(const ipc::Segment& segment,
                                                  const model::ParamBlock& block,
                                                  absl::Span<const int> records, uint64_t version);

}  // namespace harmony::worker
