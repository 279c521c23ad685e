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
      1};                          // microbatches of a forward task (PlanBuilder::ForwardTaskSizes)
  bool alike_devices = false;      // all devices are the same but for their names
  size_t most_devices = SIZE_MAX;  // groups are moved to the first so many
  bool together = false;           // several changes at once, too, for plans of many groups
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

// Devices that a group can be put on: where every device runs all groups there is no choice.
inline int DeviceChoices(const plan::Plan& plan) {
  return plan.mode == plan::ParallelMode::kData ? 1 : static_cast<int>(plan.devices.size());
}

// Makes the forward groups end where the fused group begins; nothing is kept that no forward group
// loads or computes.
void FitForward(plan::Plan* plan);

// The forward groups are the backward groups, without the fused one.
void MirrorForward(plan::Plan* plan);

// Devices are numbered in the order in which the groups use them, backward groups first. For
// devices that are alike: what differs in their names only becomes the same.
void RenameDevices(plan::Plan* plan);

// Group g on device (first + g) mod N.
void WrapAround(int num_devices, int first, std::vector<plan::LayerGroup>* groups);

// Tasks in the order of a step, forward groups, then backward groups from the last: task number j
// on device (first + j) mod N.
void TakeTurns(int num_devices, int first, plan::Plan* plan);

// Tells plans apart that Complete would make different.
std::string KeyOf(const plan::Plan& plan);

}  // namespace harmony::planner
