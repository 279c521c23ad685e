#pragma once

// Small changes of a plan: what the search tries next. PURE.

#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/plan.h"
#include "coordinator/planner/search/chooser.h"

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

// Changes one thing that is chosen: a boundary, the device of a group, the groups' number, ... Only
// what follows from the groups is not up to date afterwards (PlanBuilder::Complete). False when
// nothing was changed. At random for annealing; each way in turn, these are a plan's neighbours.
bool Move(const MoveRules& rules, Chooser& choose, plan::Plan* plan);

inline bool MayKeepActivations(const MoveRules& rules) {
  return rules.activations && rules.stash != job::StashPlacement::kHost;
}

// Stashes stay on the devices where the rules say so, and nowhere where they say that (activations
// neither, then).
void PlaceStashes(const MoveRules& rules, plan::Plan* plan);

// Makes the forward groups end where the fused group begins; nothing is kept that no forward group
// loads or computes.
void FitForward(plan::Plan* plan);

// The forward groups are the backward groups, without the fused one.
void MirrorForward(plan::Plan* plan);

// What a group keeps from its forward to its backward; its stash with its activations. (To leave a
// stash that is kept alone was tried: plans of llama-8B on 8 devices of two roots were 0.7% slower
// in the mean of six seeds.)
struct Kept {
  bool weights = false, activations = false;
};
// Backward group g, which is not the last, and a forward group of the same layers run on these
// devices, so that such things can be kept from one to the other.
void Match(size_t g, const plan::DeviceSet& devices, Kept kept, plan::Plan* plan);

// Tells plans apart that Complete would make different.
std::string KeyOf(const plan::Plan& plan);

}  // namespace harmony::planner
