#include "coordinator/planner/fit/device_need.h"

#include "coordinator/dispatch/memory/kept_layout.h"

namespace harmony::planner {
namespace {

GroupNeed NeedOf(const model::ModelSpec& model, const plan::Plan& plan,
                 const dispatch::KeptLayout& kept, dispatch::ExecutionKind kind, int group,
                 int shard) {
  dispatch::GroupExecution execution = dispatch::PlannedExecution(model, plan, kind, group, shard);
  const dispatch::ItemSizes items = dispatch::LayOutItems(model, plan, execution);
  GroupNeed need;
  need.kind = kind;
  need.group = group;
  need.shard = shard;
  need.layers = execution.layers;
  need.device = execution.device;
  need.kept = kept.bytes(execution.device);
  for (int64_t i = 0; i < execution.end_item; ++i) {
    Bytes& sum = i < execution.loss             ? need.weights
                 : i < execution.first_gradient ? need.streaming
                                                : need.gradients;
    sum += items[static_cast<size_t>(i)].AlignUp(kSlotAlignment);
  }
  need.workspace = dispatch::WorkspaceBoundOf(model, plan, execution);
  need.keeps_weights = execution.keeper >= 0;
  need.keeps_activations = execution.activations >= 0;
  if (kind == dispatch::ExecutionKind::kForward) return need;
  need.keeps_stash = plan.backward_groups[group].keep_stash;
  need.gradient_parts = plan.backward_groups[group].gradient_parts;
  return need;
}

}  // namespace

std::vector<GroupNeed> NeedOfGroups(const model::ModelSpec& model, const plan::Plan& plan) {
  std::vector<GroupNeed> needs;
  const dispatch::KeptLayout kept(model, plan);
  const auto add = [&](dispatch::ExecutionKind kind, int group) {
    const plan::LayerGroup& of = dispatch::PlannedGroup(plan, kind, group);
    for (int shard = 0; shard < of.devices.num_shards(); ++shard) {
      needs.push_back(NeedOf(model, plan, kept, kind, group, shard));
    }
  };
  const int forwards = static_cast<int>(plan.forward_groups.size());
  const int backwards = static_cast<int>(plan.backward_groups.size());
  for (int f = 0; f < forwards; ++f) add(dispatch::ExecutionKind::kForward, f);
  for (int g = 0; g < backwards; ++g) {
    add(g + 1 == backwards ? dispatch::ExecutionKind::kFused : dispatch::ExecutionKind::kBackward,
        g);
  }
  return needs;
}

std::vector<DeviceNeed> NeedOfDevices(const plan::Plan& plan, const std::vector<GroupNeed>& needs) {
  std::vector<DeviceNeed> devices(plan.devices.size());
  for (const GroupNeed& need : needs) {
    DeviceNeed& device = devices[static_cast<size_t>(need.device)];
    if (need.resident() > device.resident.resident()) device.resident = need;
    if (need.workspace > device.workspace.workspace) device.workspace = need;
  }
  return devices;
}

const char* KindName(dispatch::ExecutionKind kind) {
  static constexpr const char* kNames[] = {"forward", "backward", "forward+backward"};
  return kNames[static_cast<int>(kind)];
}

}  // namespace harmony::planner
