#include "coordinator/planner/device_need.h"

#include "coordinator/core/kept_layout.h"

namespace harmony {
namespace {

GroupNeed NeedOf(const ModelSpec& model, const Plan& plan, const KeptLayout& kept, VisitKind kind,
                 int group, int share) {
  Visit visit = PlannedVisit(model, plan, kind, group, share);
  const std::vector<Bytes> items = LayOutItems(model, plan, visit);
  GroupNeed need;
  need.kind = kind;
  need.group = group;
  need.share = share;
  need.layers = visit.layers;
  need.device = visit.device;
  need.kept = kept.bytes(visit.device);
  const size_t weights = static_cast<size_t>(visit.own_blocks);
  const size_t gradients = weights + (kind == VisitKind::kForward ? 0 : visit.uses.size());
  for (size_t i = 0; i < items.size(); ++i) {
    Bytes& sum = i < weights ? need.weights : i < gradients ? need.gradients : need.streaming;
    sum += items[i].AlignUp(kSlotAlignment);
  }
  need.workspace = WorkspaceBoundOf(model, plan, visit);
  return need;
}

}  // namespace

std::vector<GroupNeed> NeedOfGroups(const ModelSpec& model, const Plan& plan) {
  std::vector<GroupNeed> needs;
  const KeptLayout kept(model, plan);
  const auto add = [&](VisitKind kind, size_t group) {
    for (int share = 0; share < plan.num_shares(); ++share) {
      needs.push_back(NeedOf(model, plan, kept, kind, static_cast<int>(group), share));
    }
  };
  for (size_t f = 0; f < plan.forward_groups.size(); ++f) add(VisitKind::kForward, f);
  for (size_t g = 0; g < plan.backward_groups.size(); ++g) {
    add(g + 1 == plan.backward_groups.size() ? VisitKind::kFused : VisitKind::kBackward, g);
  }
  return needs;
}

std::vector<DeviceNeed> NeedOfDevices(const Plan& plan, const std::vector<GroupNeed>& needs) {
  std::vector<DeviceNeed> devices(plan.devices.size());
  for (const GroupNeed& need : needs) {
    DeviceNeed& device = devices[static_cast<size_t>(need.device)];
    if (need.resident() > device.resident.resident()) device.resident = need;
    if (need.workspace > device.workspace.workspace) device.workspace = need;
  }
  return devices;
}

const char* KindName(VisitKind kind) {
  static constexpr const char* kNames[] = {"forward", "backward", "forward+backward"};
  return kNames[static_cast<int>(kind)];
}

}  // namespace harmony
