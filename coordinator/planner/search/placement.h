#pragma once

// On which devices groups run: the sets that a search chooses of, and ways to give them to all the
// groups of a plan. PURE.

#include <cstddef>
#include <vector>

#include "common/plan/plan.h"
#include "coordinator/planner/search/moves.h"

namespace harmony::planner {

// Of a builder: single devices are taken in turn.
void SetDeviceChoices(std::vector<plan::DeviceSet> choices, MoveRules* rules);
// Leaves the choices without devices from number `count` on.
void LimitDevices(size_t count, MoveRules* rules);
// The set that is number `turn` in turn, from 0 and round again.
inline const plan::DeviceSet& Turn(const MoveRules& rules, size_t turn) {
  return rules.device_choices[turn % rules.turns];
}

// Devices are numbered in the order in which the groups use them, backward groups first. For
// devices that are alike: what differs in their names only becomes the same.
void RenameDevices(plan::Plan* plan);

// The set that comes so many turns later; one that is not taken in turn stays.
void RotateBy(const MoveRules& rules, size_t by, plan::LayerGroup* group);

// Group g has turn first + g.
void WrapAround(const MoveRules& rules, size_t first, std::vector<plan::LayerGroup>* groups);

// The groups in the order of a step: forward groups, then backward groups from the last.
std::vector<plan::LayerGroup*> InOrder(plan::Plan* plan);
// Number j of them has turn first + j.
void TakeTurns(const MoveRules& rules, size_t first, plan::Plan* plan);

// The first `begin` groups of a step and the last `end` run on one set of several devices, number
// `chosen` of those; or (from their number on) take turns, from that turn on. So no device waits
// while a pipeline fills and drains. False when that changes nothing.
bool Spread(const MoveRules& rules, size_t begin, size_t end, size_t chosen, plan::Plan* plan);

}  // namespace harmony::planner
