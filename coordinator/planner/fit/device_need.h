#pragma once

// What the groups of a plan need on their devices. PURE.

#include <string>
#include <vector>

#include "coordinator/dispatch/graph/group_executions.h"

namespace harmony::planner {

struct GroupNeed {
  dispatch::ExecutionKind kind = dispatch::ExecutionKind::kForward;
  int group = 0;
  int shard = 0;
  model::LayerRange layers;
  int device = 0;
  Bytes weights, gradients, streaming;  // resident
  Bytes kept;  // resident as well: what the device keeps from forward to backward, of all groups
  Bytes workspace;
  // It works with what stays on its device from forward to backward.
  bool keeps_weights = false, keeps_stash = false, keeps_activations = false;
  int gradient_parts = 0;  // of a backward
  Bytes resident() const { return weights + gradients + streaming + kept; }
  Bytes total() const { return resident() + workspace; }
};

// Every shard of every group of the plan: forward, then backward (the last is fused).
std::vector<GroupNeed> NeedOfGroups(const model::ModelSpec& model, const plan::Plan& plan);

// A device's memory is divided once for all groups that run there: room for the most resident and
// for the most workspace.
struct DeviceNeed {
  GroupNeed resident, workspace;  // the groups that need most of each
  Bytes total() const { return resident.resident() + workspace.workspace; }
};
// By device. `needs`: of all groups of the plan.
std::vector<DeviceNeed> NeedOfDevices(const plan::Plan& plan, const std::vector<GroupNeed>& needs);

const char* KindName(dispatch::ExecutionKind kind);

}  // namespace harmony::planner
