#pragma once

// What a shard of a layer group needs on its device in one phase: which tensors, and how they are
// laid out. PURE; used by the dispatcher and by the planner, so that they cannot disagree.

#include <climits>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "common/model/gradient_times.h"
#include "common/plan/plan.h"
#include "coordinator/dispatch/graph/work_graph.h"

namespace harmony::dispatch {

// `group` counts forward groups for kForward, backward groups otherwise.
const plan::LayerGroup& PlannedGroup(const plan::Plan& plan, ExecutionKind kind, int group);

// The execution with everything that follows from the plan filled in; microbatches are all of the
// shard. A forward may end early, with layer `last`, when only stashes are wanted of it.
GroupExecution PlannedExecution(const model::ModelSpec& model, const plan::Plan& plan,
                                ExecutionKind kind, int group, int shard = 0, int last = INT_MAX);

// What its tasks are.
command::TaskKind TaskOf(ExecutionKind kind);
// REQUIRES: of a backward kind.
model::BackwardTask BackwardTaskOf(const GroupExecution& execution);

// What a task of the execution lacks that has `gradient_copies`.
inline model::Awaited AwaitedBy(const Node& task, const GroupExecution& execution) {
  const bool last = task.position + 1 == static_cast<int>(execution.positions.size());
  return last && execution.sum.taken > 0 ? model::Awaited::kSums : model::Awaited::kBuffers;
}

using ItemSizes = absl::InlinedVector<Bytes, 16>;

// Sizes of its memory items, in this order: a block each (its own weights); loss slots (fused),
// streaming slots in, streaming slots out; of backward kinds a reference each (the first buffer of
// its gradient, from which it leaves the device), and all further buffers. What is given back first
// comes last, where the next execution, which takes its memory from the other end, meets it first:
// further buffers hold sums that wait, and are needed from the second replica (where sums of other
// shards are taken, or the first part takes its buffers from the other end, the first task) to the
// last task;
// gradients leave the last reference's first; copies of losses and outputs come by the same link as
// gradients. Fills in the item numbers, strides and offsets of `execution`.
ItemSizes LayOutItems(const model::ModelSpec& model, const plan::Plan& plan,
                      GroupExecution& execution);

// Their sum, each at a multiple of kSlotAlignment.
Bytes TotalOf(absl::Span<const Bytes> items);
// The buffer where the sum of a part ends up, and from which the part's others are counted: parts
// take the buffers from either end by turns, the last part from the first one. So the sum of a part
// lies in what is the last buffer of the next one, which only the last replica of that adds to.
// `microbatch`: any of the part. REQUIRES: of a backward kind.
int FirstBuffer(const GroupExecution& execution, int microbatch);
// Whether the task of the microbatch writes to those buffers first, and so awaits that the sum of
// the part before has left them. REQUIRES: of a backward kind.
inline bool AwaitsPartBefore(const plan::Plan& plan, const GroupExecution& execution,
                             int microbatch) {
  const bool last_replica =
      (microbatch + plan.replica_microbatches()) % execution.sum.microbatches == 0;
  return execution.sum.taken == 0 && last_replica;
}
// The buffer of the taker's gradients where its tree has the sums that the giver passes on to it.
int TakenBuffer(const GroupExecution& taker, const GroupExecution& giver);

// The most that its tasks take of the worker's workspace: an upper bound.
Bytes WorkspaceBoundOf(const model::ModelSpec& model, const plan::Plan& plan,
                       const GroupExecution& execution);
// What they are expected to take, where so many threads compute: see WorkspacePeak.
Bytes WorkspacePeakOf(const model::ModelSpec& model, const plan::Plan& plan,
                      const GroupExecution& execution, int threads);

}  // namespace harmony::dispatch
