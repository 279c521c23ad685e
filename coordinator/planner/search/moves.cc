#include "coordinator/planner/search/moves.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "coordinator/planner/search/boundaries.h"
#include "coordinator/planner/search/grouping.h"
#include "coordinator/planner/search/placement.h"

namespace harmony::planner {
namespace {

// A change that may be made; false when it changed nothing. `groups`: the forward or the backward
// groups of the plan, for changes of either.
using Change = bool(const MoveRules& rules, Chooser& choose, Groups& groups, plan::Plan* plan);
struct WeightedChange {
  int weight;
  Change* change;
  size_t least_groups = 0;  // of `groups`; with fewer there is nothing to change
};

bool AnyOf(absl::Span<const WeightedChange> changes, const MoveRules& rules, Chooser& choose,
           Groups& groups, plan::Plan* plan) {
  absl::InlinedVector<int, 16> weights;
  for (const WeightedChange& each : changes) weights.push_back(each.weight);
  const auto chosen = static_cast<size_t>(choose.Weighted(weights));
  return groups.size() >= changes[chosen].least_groups &&
         changes[chosen].change(rules, choose, groups, plan);
}

// In layers. Mostly few, for most plans that are better differ little; now and then many, since in
// a model of a hundred layers single ones do not lead past plans that are worse.
int AnyShift(Chooser& choose) {
  static constexpr int kSteps[] = {1, 2, 3, 5, 8};
  const int by = kSteps[choose.Weighted({4, 2, 1, 1, 1})];
  return choose.Either() ? by : -by;
}

// A boundary between two of at least two groups.
size_t AnyBoundary(Chooser& choose, const Groups& groups) {
  return static_cast<size_t>(1 + choose.Below(groups.size() - 1));
}

bool Shift(const MoveRules&, Chooser& choose, Groups& groups, plan::Plan*) {
  const int by = AnyShift(choose);
  const size_t i = AnyBoundary(choose, groups);
  return ShiftBoundaries(i, i, by, &groups);
}

// A backward boundary, and the forward boundary that is at the same place.
bool ShiftBoth(const MoveRules&, Chooser& choose, Groups&, plan::Plan* plan) {
  Groups& groups = plan->backward_groups;
  if (groups.size() < 2) return false;
  const size_t i = AnyBoundary(choose, groups);
  const int at = groups[i].layers.first, by = AnyShift(choose);
  if (!ShiftBoundaries(i, i, by, &groups)) return false;
  const size_t forward = BeginningAt(plan->forward_groups, at);
  return forward == 0 || ShiftBoundaries(forward, forward, by, &plan->forward_groups);
}

bool Merge(const MoveRules&, Chooser& choose, Groups& groups, plan::Plan*) {
  const int at = groups[AnyBoundary(choose, groups)].layers.first;
  RemoveBoundary(at, /*upper_devices=*/choose.Either(), &groups);
  return true;
}

bool Split(const MoveRules& rules, Chooser& choose, Groups& groups, plan::Plan*) {
  const auto i = static_cast<size_t>(choose.Below(groups.size()));
  const model::LayerRange layers = groups[i].layers;
  if (layers.count() < 2) return false;
  const int first = layers.first + 1 + choose.Below(static_cast<size_t>(layers.count() - 1));
  Cut(first, &groups);
  groups[i + 1] = {groups[i + 1].layers, choose.Of(rules.device_choices)};  // and keeps nothing
  return true;
}

// The number of the set among the choices; 0 where it is none of them.
size_t NumberOf(const MoveRules& rules, const plan::DeviceSet& devices) {
  const auto at = std::find(rules.device_choices.begin(), rules.device_choices.end(), devices);
  return at == rules.device_choices.end() ? 0
                                          : static_cast<size_t>(at - rules.device_choices.begin());
}

// A group; or forward and backward groups of the same layers.
bool Relocate(const MoveRules& rules, Chooser& choose, Groups& groups, plan::Plan* plan) {
  const size_t sets = rules.device_choices.size();
  const bool both = choose.Either();
  if (groups.empty() || sets < 2) return false;
  const plan::LayerGroup group = choose.Of(groups);
  const size_t next =
      NumberOf(rules, group.devices) + 1 + static_cast<size_t>(choose.Below(sets - 1));
  for (Groups* of : {&plan->forward_groups, &plan->backward_groups}) {
    if (!both && of != &groups) continue;
    for (plan::LayerGroup& other : *of) {
      if (other.layers == group.layers) other.devices = rules.device_choices[next % sets];
    }
  }
  return true;
}

bool SwapDevices(const MoveRules&, Chooser& choose, Groups& groups, plan::Plan*) {
  plan::LayerGroup& a = choose.Of(groups);
  plan::LayerGroup& b = choose.Of(groups);
  if (a.devices == b.devices) return false;
  std::swap(a.devices, b.devices);
  return true;
}

bool Rotate(const MoveRules& rules, Chooser& choose, Groups& groups, plan::Plan*) {
  if (rules.turns < 2) return false;
  const auto by = static_cast<size_t>(1 + choose.Below(rules.turns - 1));
  for (plan::LayerGroup& group : groups) RotateBy(rules, by, &group);
  return !groups.empty();
}

bool Wrap(const MoveRules& rules, Chooser& choose, Groups& groups, plan::Plan*) {
  WrapAround(rules, static_cast<size_t>(choose.Below(rules.turns)), &groups);
  return rules.turns > 1;
}

bool Mirror(const MoveRules&, Chooser&, Groups&, plan::Plan* plan) {
  MirrorForward(plan);
  return true;
}

bool SpreadEnds(const MoveRules& rules, Chooser& choose, Groups&, plan::Plan* plan) {
  const size_t groups = plan->forward_groups.size() + plan->backward_groups.size();
  const auto count = static_cast<size_t>(1 + choose.Below(groups));
  const int where = choose.Below(3);
  const size_t begin = where != 1 ? count : 0, end = where != 0 ? count : 0;
  const int chosen = choose.Below(rules.device_choices.size());
  return Spread(rules, begin, end, static_cast<size_t>(chosen), plan);
}

bool ToggleKeep(const MoveRules& rules, Chooser& choose, Groups&, plan::Plan* plan) {
  plan::LayerGroup& group = choose.Of(plan->backward_groups);
  // One of what the rules leave open; weights always are.
  const bool stash = rules.stash == job::StashPlacement::kAuto,
             activations = MayKeepActivations(rules);
  const int others = int{stash} + int{activations};
  const int what = others > 0 ? choose.Below(static_cast<size_t>(others + 1)) : 0;
  if (stash && what == 0) {
    group.keep_stash = !group.keep_stash;
    group.keep_activations = group.keep_activations && group.keep_stash;
    return true;
  }
  if (activations && what + 1 == others && plan::CanKeepActivations(*plan, group)) {
    group.keep_activations = !group.keep_activations;
    group.keep_stash = group.keep_stash || group.keep_activations;
    return true;
  }
  if (!plan::CanKeepWeights(*plan, group)) return false;
  group.keep_weights = !group.keep_weights;
  return true;
}

bool MatchAnywhere(const MoveRules& rules, Chooser& choose, Groups&, plan::Plan* plan) {
  static constexpr Kept kKept[] = {
      {.weights = true}, {.activations = true}, {.weights = true, .activations = true}};
  const Groups& groups = plan->backward_groups;
  if (groups.size() < 2) return false;
  const auto g = static_cast<size_t>(choose.Below(groups.size() - 1));
  const plan::DeviceSet devices =
      choose.Either() ? groups[g].devices : choose.Of(rules.device_choices);
  const size_t choices = MayKeepActivations(rules) ? std::size(kKept) : 1;
  Match(g, devices, kKept[choose.Below(choices)], plan);
  return true;
}

bool MoveSettings(const MoveRules& rules, Chooser& choose, Groups&, plan::Plan* plan) {
  if (rules.update && choose.Either()) {
    plan->update = plan->update == job::UpdateMode::kEager ? job::UpdateMode::kDeferred
                                                           : job::UpdateMode::kEager;
    return true;
  }
  if (rules.forward_task_sizes.size() > 1 && choose.Either()) {
    const int size = choose.Of(rules.forward_task_sizes);
    return std::exchange(plan->microbatches_per_forward_task, size) != size;
  }
  const int slots = 1 + choose.Below(static_cast<size_t>(rules.most_slots));
  return std::exchange(plan->stream_slots, slots) != slots;
}

// ---- Several changes that only together are for the better ----

// A run of backward boundaries, or of forward ones, or of both: then those that lie between the
// same layers.
bool ShiftRuns(const MoveRules&, Chooser& choose, Groups&, plan::Plan* plan) {
  const int which = choose.Below(3);
  Groups& groups = which == 0 ? plan->forward_groups : plan->backward_groups;
  if (groups.size() < 3) return false;
  const size_t first = AnyBoundary(choose, groups);
  const auto reach = static_cast<size_t>(1 + choose.Below(groups.size()));
  const size_t last = std::min(first + reach, groups.size() - 1);
  const int by = choose.Either() ? 1 : -1;
  const int from = groups[first].layers.first, to = groups[last].layers.first;
  if (!ShiftBoundaries(first, last, by, &groups)) return false;
  if (which != 2) return true;
  Groups& forward = plan->forward_groups;
  size_t begin = 1;
  while (begin < forward.size() && forward[begin].layers.first < from) ++begin;
  size_t end = begin;
  while (end < forward.size() && forward[end].layers.first <= to) ++end;
  return begin == end || ShiftBoundaries(begin, end - 1, by, &forward);
}

// A boundary that forward and backward groups share goes, or a new one comes.
bool MergeBoth(Chooser& choose, plan::Plan* plan) {
  if (plan->backward_groups.size() < 2) return false;
  const int at = plan->backward_groups[AnyBoundary(choose, plan->backward_groups)].layers.first;
  RemoveBoundary(at, /*upper_devices=*/false, &plan->backward_groups);
  RemoveBoundary(at, /*upper_devices=*/false, &plan->forward_groups);
  return true;
}

bool SplitBoth(Chooser& choose, plan::Plan* plan) {
  const int layers = plan->backward_groups.back().layers.last + 1;
  if (layers < 2) return false;
  const int at = 1 + choose.Below(static_cast<size_t>(layers - 1));
  const bool backward = Cut(at, &plan->backward_groups);
  return Cut(at, &plan->forward_groups) || backward;
}

bool TakeTurnsAgain(const MoveRules& rules, Chooser& choose, Groups&, plan::Plan* plan) {
  TakeTurns(rules, static_cast<size_t>(choose.Below(rules.turns)), plan);
  return true;
}

bool CutBoth(const MoveRules& rules, Chooser& choose, Groups& groups, plan::Plan* plan) {
  if (!(choose.Either() ? MergeBoth(choose, plan) : SplitBoth(choose, plan))) return false;
  FitForward(plan);
  return TakeTurnsAgain(rules, choose, groups, plan);
}

// Two groups become one, and another one runs elsewhere.
bool MergeAndMove(const MoveRules& rules, Chooser& choose, Groups& groups, plan::Plan* plan) {
  if (!Merge(rules, choose, groups, plan)) return false;
  plan::LayerGroup& moved = choose.Of(groups);
  moved.devices = choose.Of(rules.device_choices);
  return true;
}

// All forward or all backward groups are cut anew by their times, half to one and a half times as
// many of them; the devices take turns again.
bool Recut(const MoveRules& rules, Chooser& choose, Groups& unused, plan::Plan* plan) {
  const bool forward = choose.Either();
  const std::vector<double>& all = forward ? rules.forward_times : rules.backward_times;
  Groups& groups = forward ? plan->forward_groups : plan->backward_groups;
  if (groups.empty() || all.empty()) return false;
  const int end = groups.back().layers.last + 1, now = static_cast<int>(groups.size());
  const int count = std::min((now + 1) / 2 + choose.Below(groups.size() + 1), end);
  const int ramp = std::min(choose.Below(2 * rules.turns), count - 1);
  const double taper = 0.3 + 0.7 * choose.Fraction();
  groups.clear();
  const std::vector<double> times(all.begin(), all.begin() + end);
  for (const model::LayerRange& layers : TaperedPartition(times, count, ramp, taper)) {
    groups.emplace_back().layers = layers;
  }
  FitForward(plan);
  return TakeTurnsAgain(rules, choose, unused, plan);
}

bool MoveTogether(const MoveRules& rules, Chooser& choose, Groups& groups, plan::Plan* plan) {
  static constexpr WeightedChange kChanges[] = {
      {1, ShiftRuns}, {1, CutBoth}, {1, TakeTurnsAgain}, {1, MergeAndMove, 2}, {2, Recut}};
  return AnyOf(kChanges, rules, choose, groups, plan);
}

constexpr WeightedChange kChanges[] = {
    {4, Shift, 2},       {3, ShiftBoth},    {1, Merge, 2},    {1, Split, 1}, {2, Relocate},
    {1, SwapDevices, 2}, {1, Rotate},       {1, Wrap},        {1, Mirror},   {1, ToggleKeep},
    {1, MatchAnywhere},  {1, MoveSettings}, {4, MoveTogether}};
constexpr WeightedChange kChangesOfGivenGroups[] = {{1, MoveSettings}, {2, ToggleKeep}};

bool AnyChange(const MoveRules& rules, Chooser& choose, plan::Plan* plan) {
  if (!rules.groups) {
    return AnyOf(kChangesOfGivenGroups, rules, choose, plan->backward_groups, plan);
  }
  Groups& groups = choose.Either() ? plan->forward_groups : plan->backward_groups;
  const bool larger_sets = rules.device_choices.size() > rules.turns;
  if (larger_sets && choose.Weighted({1, 3}) == 0) return SpreadEnds(rules, choose, groups, plan);
  const absl::Span<const WeightedChange> changes(kChanges);
  return AnyOf(changes.first(changes.size() - (rules.together ? 0 : 1)), rules, choose, groups,
               plan);
}

}  // namespace

bool Move(const MoveRules& rules, Chooser& choose, plan::Plan* plan) {
  const bool moved = AnyChange(rules, choose, plan);
  FitForward(plan);
  PlaceStashes(rules, plan);
  return moved;
}

void PlaceStashes(const MoveRules& rules, plan::Plan* plan) {
  if (rules.stash == job::StashPlacement::kAuto) return;
  for (plan::LayerGroup& group : plan->backward_groups) {
    group.keep_stash =
        rules.stash == job::StashPlacement::kDevice && plan::CanKeepStash(*plan, group);
    group.keep_activations = group.keep_activations && group.keep_stash;
  }
}

void FitForward(plan::Plan* plan) {
  const int end = plan->backward_groups.back().layers.first;
  Groups& groups = plan->forward_groups;
  while (!groups.empty() && groups.back().layers.first >= end) groups.pop_back();
  if (end > 0) {
    if (groups.empty()) groups.push_back({{0, 0}, plan->backward_groups.front().devices});
    groups.back().layers.last = end - 1;
  }
  for (plan::LayerGroup& group : plan->backward_groups) {
    group.keep_weights = group.keep_weights && plan::CanKeepWeights(*plan, group);
    group.keep_stash = group.keep_stash && plan::CanKeepStash(*plan, group);
    group.keep_activations =
        group.keep_activations && group.keep_stash && plan::CanKeepActivations(*plan, group);
  }
}

void MirrorForward(plan::Plan* plan) {
  plan->forward_groups.assign(plan->backward_groups.begin(), plan->backward_groups.end() - 1);
  for (plan::LayerGroup& group : plan->forward_groups) {
    group.keep_weights = group.keep_stash = group.keep_activations = false;
  }
}

void Match(size_t g, const plan::DeviceSet& devices, Kept kept, plan::Plan* plan) {
  plan::LayerGroup& group = plan->backward_groups[g];
  Groups& forward = plan->forward_groups;
  Cut(group.layers.first, &forward);
  Cut(group.layers.last + 1, &forward);
  const auto within = [&](const plan::LayerGroup& other) {
    return group.layers.contains(other.layers.first);
  };
  const auto first = std::find_if(forward.begin(), forward.end(), within);
  const auto end = std::find_if_not(first, forward.end(), within);
  *first = {group.layers, devices};
  forward.erase(first + 1, end);
  group.devices = devices;
  group.keep_weights = kept.weights;
  group.keep_stash = group.keep_activations = kept.activations;
}

std::string KeyOf(const plan::Plan& plan) {
  std::string key;
  const auto add = [&key](int value) {
    key.push_back(static_cast<char>(value & 0xff));
    key.push_back(static_cast<char>(value >> 8 & 0xff));
  };
  add(plan.stream_slots);
  add(plan.microbatches_per_forward_task);
  add(static_cast<int>(plan.update));
  for (const Groups* groups : {&plan.forward_groups, &plan.backward_groups}) {
    add(static_cast<int>(groups->size()));
    for (const plan::LayerGroup& group : *groups) {
      add(group.layers.last);
      const int kept =
          int{group.keep_weights} + 2 * int{group.keep_stash} + 4 * int{group.keep_activations};
      add(group.devices.front() * 8 + kept);
      for (int i = 1; i < group.devices.size(); ++i) add(group.devices[i] | 0x8000);
    }
  }
  return key;
}

}  // namespace harmony::planner
