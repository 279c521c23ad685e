#include "coordinator/planner/search/enumeration.h"

#include <algorithm>
#include <vector>

namespace harmony::planner {
namespace {

// Groups of the layers before `end`, and what they run on. Of alike devices, those that are new
// come in order: others differ in their names only. (Not so where some choices are of several
// devices, for there is not one for each set of names.) `named`: devices used so far.
std::vector<plan::LayerGroup> AnyGroups(int end, const MoveRules& rules, Chooser& choose,
                                        int* named) {
  const bool single = rules.device_choices.size() == rules.turns;
  std::vector<plan::LayerGroup> groups;
  for (int first = 0; first < end; first = groups.back().layers.last + 1) {
    const int last = first + choose.Below(static_cast<size_t>(end - first));
    size_t choices = rules.device_choices.size();
    if (rules.alike_devices && single) {
      choices = std::min(choices, static_cast<size_t>(*named) + 1);
    }
    const plan::DeviceSet& devices =
        rules.device_choices[static_cast<size_t>(choose.Below(choices))];
    for (int device : devices) *named = std::max(*named, device + 1);
    groups.push_back({{first, last}, devices});
  }
  return groups;
}

void AnyKept(const MoveRules& rules, Chooser& choose, const plan::Plan& plan,
             plan::LayerGroup* group) {
  group->keep_weights = plan::CanKeepWeights(plan, *group) && choose.Either();
  const bool fused = group == &plan.backward_groups.back();
  const bool stash = (fused ? group->layers.first : plan::StashBoundary(*group)) > 0 &&
                     rules.stash != job::StashPlacement::kHost && plan::CanKeepStash(plan, *group);
  group->keep_stash = stash && (rules.stash == job::StashPlacement::kDevice || choose.Either());
  group->keep_activations = group->keep_stash && MayKeepActivations(rules) &&
                            plan::CanKeepActivations(plan, *group) && choose.Either();
}

}  // namespace

plan::Plan AnyPlan(int layers, const plan::Plan& shape, const MoveRules& rules, Chooser& choose) {
  plan::Plan plan = shape;
  int named = 0;
  plan.backward_groups = AnyGroups(layers, rules, choose, &named);
  plan.forward_groups = AnyGroups(plan.backward_groups.back().layers.first, rules, choose, &named);
  bool single_microbatches = plan.forward_groups.empty();
  for (plan::LayerGroup& group : plan.backward_groups) {
    AnyKept(rules, choose, plan, &group);
    single_microbatches |= group.keep_activations;
  }
  if (rules.update) {
    plan.update = choose.Either() ? job::UpdateMode::kEager : job::UpdateMode::kDeferred;
  }
  plan.stream_slots = 1 + choose.Below(static_cast<size_t>(rules.most_slots));
  if (!single_microbatches)
    plan.microbatches_per_forward_task = choose.Of(rules.forward_task_sizes);
  return plan;
}

int64_t CountPlans(int layers, const MoveRules& rules, int64_t enough) {
  const auto devices = static_cast<int64_t>(rules.device_choices.size());
  const int64_t settings = rules.most_slots * (rules.update ? 2 : 1) *
                           static_cast<int64_t>(rules.forward_task_sizes.size());
  // Groups of n layers on devices: devices * (devices + 1) ^ (n - 1); of backward groups there are
  // those that keep their stash, too.
  const int64_t choices = rules.stash == job::StashPlacement::kAuto ? devices * 2 : devices;
  int64_t forward = 1, backward = 1, all = devices * settings;  // fused from layer 0
  for (int first = 1; first < layers; ++first) {
    forward = first == 1 ? devices : forward * (devices + 1);
    backward = first == 1 ? choices : backward * (choices + 1);
    if (backward > enough) return enough + 1;
    all += choices * forward * backward * settings;
    if (all > enough * 6) return enough + 1;
  }
  int64_t names = 1;  // of equal devices
  const bool single = rules.device_choices.size() == rules.turns;
  for (int64_t d = 2; rules.alike_devices && single && d <= devices; ++d) names *= d;
  return all / names;
}

}  // namespace harmony::planner
