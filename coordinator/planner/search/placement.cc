#include "coordinator/planner/search/placement.h"

#include <algorithm>
#include <utility>

namespace harmony::planner {

void RenameDevices(plan::Plan* plan) {
  std::vector<int> names(plan->devices.size(), -1);
  int next = 0;
  for (std::vector<plan::LayerGroup>* groups : {&plan->backward_groups, &plan->forward_groups}) {
    for (plan::LayerGroup& group : *groups) {
      plan::DeviceSet::Entries renamed;
      for (int device : group.devices) {
        int& name = names[device];
        if (name < 0) name = next++;
        renamed.push_back(static_cast<int16_t>(name));
      }
      group.devices = plan::DeviceSet::Of(renamed);
    }
  }
}

void SetDeviceChoices(std::vector<plan::DeviceSet> choices, MoveRules* rules) {
  const auto larger = std::find_if(choices.begin(), choices.end(),
                                   [](const plan::DeviceSet& set) { return set.size() > 1; });
  rules->turns = std::max<size_t>(static_cast<size_t>(larger - choices.begin()), 1);
  rules->device_choices = std::move(choices);
}

void LimitDevices(size_t count, MoveRules* rules) {
  std::vector<plan::DeviceSet>& choices = rules->device_choices;
  choices.erase(std::remove_if(choices.begin(), choices.end(),
                               [count](const plan::DeviceSet& set) {
                                 return std::any_of(set.begin(), set.end(), [count](int device) {
                                   return device >= static_cast<int>(count);
                                 });
                               }),
                choices.end());
  rules->turns = std::min(rules->turns, count);
}

void RotateBy(const MoveRules& rules, size_t by, plan::LayerGroup* group) {
  const auto end = rules.device_choices.begin() + static_cast<ptrdiff_t>(rules.turns);
  const auto at = std::find(rules.device_choices.begin(), end, group->devices);
  if (at == end) return;  // it has several
  group->devices = Turn(rules, static_cast<size_t>(at - rules.device_choices.begin()) + by);
}

void WrapAround(const MoveRules& rules, size_t first, std::vector<plan::LayerGroup>* groups) {
  for (plan::LayerGroup& group : *groups) group.devices = Turn(rules, first++);
}

std::vector<plan::LayerGroup*> InOrder(plan::Plan* plan) {
  std::vector<plan::LayerGroup*> groups;
  for (plan::LayerGroup& group : plan->forward_groups) groups.push_back(&group);
  for (auto group = plan->backward_groups.rbegin(); group != plan->backward_groups.rend();
       ++group) {
    groups.push_back(&*group);
  }
  return groups;
}

bool Spread(const MoveRules& rules, size_t begin, size_t end, size_t chosen, plan::Plan* plan) {
  const std::vector<plan::LayerGroup*> groups = InOrder(plan);
  const size_t larger = rules.device_choices.size() - rules.turns;
  bool changed = false;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i >= begin && groups.size() - i > end) continue;
    const plan::DeviceSet& set = chosen < larger ? rules.device_choices[rules.turns + chosen]
                                                 : Turn(rules, chosen - larger + i);
    changed |= std::exchange(groups[i]->devices, set) != set;
  }
  return changed;
}

void TakeTurns(const MoveRules& rules, size_t first, plan::Plan* plan) {
  for (plan::LayerGroup* group : InOrder(plan)) group->devices = Turn(rules, first++);
}

}  // namespace harmony::planner
