#pragma once

// Small changes of a plan: what the search tries next. PURE.

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/plan/plan.h"

namespace harmony::planner {

// What the search may change.
struct MoveRules {
  bool groups = true;  // boundaries and devices
  bool update = true;  // eager or deferred
  // Auto: of each group by itself. With stashes on the host no activations stay on a device either.
  job::StashPlacement stash = job::StashPlacement::kAuto;
  bool activations = true;  // kept or recomputed; false: recomputed
  int most_slots = 3;
  std::vector<int> forward_task_sizes = {
      1};  // microbatches of a forward task (PlanBuilder::ForwardTaskSizes)
  // What groups run on (PlanBuilder::DeviceChoices): first the sets that they take in turn, of one
  // device each (or one set, of all devices), then larger ones.
  std::vector<plan::DeviceSet> device_choices = {plan::DeviceSet(0)};
  size_t turns = 1;            // so many are taken in turn
  bool alike_devices = false;  // all devices are the same but for their names
  bool together = false;       // several changes at once, too, for plans of many groups
  // Of the layers, for changes that cut all groups anew; empty: there are none.
  std::vector<double> forward_times, backward_times;
};

// Changes one thing at random: a boundary, the device of a group, the groups' number, ... Only what
// follows from the groups is not up to date afterwards (PlanBuilder::Complete). False when nothing
// was changed.
bool RandomMove(const MoveRules& rules, CounterRandom& random, plan::Plan* plan);

inline bool MayKeepActivations(const MoveRules& rules) {
  return rules.activations && rules.stash != job::StashPlacement::kHost;
}

// Stashes stay on the devices where the rules say so, and nowhere where they say that (activations
// neither, then).
void PlaceStashes(const MoveRules& rules, plan::Plan* plan);

// Of a builder: single devices are taken in turn.
void SetDeviceChoices(std::vector<plan::DeviceSet> choices, MoveRules* rules);
// Leaves the choices without devices from number `count` on.
void LimitDevices(size_t count, MoveRules* rules);
// The set that is number `turn` in turn, from 0 and round again.
inline const plan::DeviceSet& Turn(const MoveRules& rules, size_t turn) {
  return rules.device_choices[turn % rules.turns];
}

// Makes the forward groups end where the fused group begins; nothing is kept that no forward group
// loads or computes.
void FitForward(plan::Plan* plan);

// The forward groups are the backward groups, without the fused one.
void MirrorForward(plan::Plan* plan);

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

// Tells plans apart that Complete would make different.
std::string KeyOf(const plan::Plan& plan);

}  // namespace harmony::planner
