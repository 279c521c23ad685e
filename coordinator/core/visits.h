#pragma once

// What a share of a layer group needs on its device in one phase: which tensors, and how they are
// laid out. PURE; used by the dispatcher and by the planner, so that they cannot disagree.

#include <climits>
#include <vector>

#include "common/plan/plan.h"
#include "coordinator/core/work_graph.h"

namespace harmony {

// The visit with everything that follows from the plan filled in; microbatches are all of the
// share. `group` counts forward groups for kForward, backward groups otherwise. A forward may end
// early, with layer `last`, when only stashes are wanted of it.
Visit PlannedVisit(const ModelSpec& model, const Plan& plan, VisitKind kind, int group,
                   int share = 0, int last = INT_MAX);

// What its tasks are.
TaskKind TaskOf(VisitKind kind);

// Sizes of its memory items, in this order: a block each (its own weights), a use each (gradients;
// backward kinds), loss slots (fused), streaming slots in, streaming slots out. Fills in the
// strides and offsets of `visit`.
std::vector<Bytes> LayOutItems(const ModelSpec& model, const Plan& plan, Visit& visit);

// Their sum, each at a multiple of kSlotAlignment.
Bytes TotalOf(const std::vector<Bytes>& items);

// The most that its tasks take of the worker's workspace: an upper bound.
Bytes WorkspaceBoundOf(const ModelSpec& model, const Plan& plan, const Visit& visit);
// What they are expected to take, where so many threads compute: see WorkspacePeak.
Bytes WorkspacePeakOf(const ModelSpec& model, const Plan& plan, const Visit& visit, int threads);

}  // namespace harmony
