#include "coordinator/planner/search/moves.h"

#include <algorithm>
#include <utility>

#include "coordinator/planner/search/boundaries.h"
#include "coordinator/planner/search/grouping.h"
#include "coordinator/planner/search/placement.h"

namespace harmony::planner {
namespace {

int Pick(CounterRandom& random, size_t count) { return static_cast<int>(random.Below(count)); }

// In layers. Mostly few, for most plans that are better differ little; now and then many, since in
// a model of a hundred layers single ones do not lead past plans that are worse.
int RandomShift(CounterRandom& random) {
  static constexpr int kSteps[] = {1, 1, 1, 1, 2, 2, 3, 5, 8};
  const int by = kSteps[Pick(random, std::size(kSteps))];
  return random.Below(2) == 0 ? by : -by;
}

bool Shift(CounterRandom& random, Groups& groups) {
  if (groups.size() < 2) return false;
  const int by = RandomShift(random);
  const size_t i = static_cast<size_t>(1 + Pick(random, groups.size() - 1));
  return ShiftBoundaries(i, i, by, &groups);
}

// A backward boundary, and the forward boundary that is at the same place.
bool ShiftBoth(CounterRandom& random, plan::Plan& plan) {
  Groups& groups = plan.backward_groups;
  if (groups.size() < 2) return false;
  const size_t i = static_cast<size_t>(1 + Pick(random, groups.size() - 1));
  const int at = groups[i].layers.first, by = RandomShift(random);
  if (!ShiftBoundaries(i, i, by, &groups)) return false;
  const size_t forward = BeginningAt(plan.forward_groups, at);
  return forward == 0 || ShiftBoundaries(forward, forward, by, &plan.forward_groups);
}

// A run of backward boundaries, or of forward ones, or of both: then those that lie between the
// same layers.
bool ShiftRuns(CounterRandom& random, plan::Plan& plan) {
  const uint64_t which = random.Below(3);
  Groups& groups = which == 0 ? plan.forward_groups : plan.backward_groups;
  if (groups.size() < 3) return false;
  const size_t first = static_cast<size_t>(1 + Pick(random, groups.size() - 1));
  const size_t reach = static_cast<size_t>(1 + Pick(random, groups.size()));
  const size_t last = std::min(first + reach, groups.size() - 1);
  const int by = random.Below(2) == 0 ? 1 : -1;
  const int from = groups[first].layers.first, to = groups[last].layers.first;
  if (!ShiftBoundaries(first, last, by, &groups)) return false;
  if (which != 2) return true;
  Groups& forward = plan.forward_groups;
  size_t begin = 1;
  while (begin < forward.size() && forward[begin].layers.first < from) ++begin;
  size_t end = begin;
  while (end < forward.size() && forward[end].layers.first <= to) ++end;
  return begin == end || ShiftBoundaries(begin, end - 1, by, &forward);
}

bool Merge(CounterRandom& random, Groups& groups) {
  if (groups.size() < 2) return false;
  const int at = groups[1 + Pick(random, groups.size() - 1)].layers.first;
  RemoveBoundary(at, /*upper_devices=*/random.Below(2) == 0, &groups);
  return true;
}

const plan::DeviceSet& AnyChoice(const MoveRules& rules, CounterRandom& random) {
  return rules.device_choices[static_cast<size_t>(Pick(random, rules.device_choices.size()))];
}

bool Split(const MoveRules& rules, CounterRandom& random, Groups& groups) {
  if (groups.empty()) return false;
  const int i = Pick(random, groups.size());
  const model::LayerRange layers = groups[i].layers;
  if (layers.count() < 2) return false;
  const int first = layers.first + 1 + Pick(random, layers.count() - 1);
  Cut(first, &groups);
  groups[i + 1] = {groups[i + 1].layers, AnyChoice(rules, random)};  // and keeps nothing
  return true;
}

// A boundary that forward and backward groups share goes, or a new one comes; the devices take
// turns again.
bool MergeBoth(CounterRandom& random, plan::Plan& plan) {
  Groups& groups = plan.backward_groups;
  if (groups.size() < 2) return false;
  const int at = groups[1 + Pick(random, groups.size() - 1)].layers.first;
  RemoveBoundary(at, /*upper_devices=*/false, &plan.backward_groups);
  RemoveBoundary(at, /*upper_devices=*/false, &plan.forward_groups);
  return true;
}

bool SplitBoth(CounterRandom& random, plan::Plan& plan) {
  const int layers = plan.backward_groups.back().layers.last + 1;
  if (layers < 2) return false;
  const int at = 1 + Pick(random, layers - 1);
  const bool backward = Cut(at, &plan.backward_groups);
  return Cut(at, &plan.forward_groups) || backward;
}

// The number of the set among the first `count` choices; 0 where it is none of them.
size_t NumberOf(const MoveRules& rules, const plan::DeviceSet& devices, size_t count) {
  const auto end = rules.device_choices.begin() + static_cast<ptrdiff_t>(count);
  const auto at = std::find(rules.device_choices.begin(), end, devices);
  return at == end ? 0 : static_cast<size_t>(at - rules.device_choices.begin());
}

// A group; `both`: forward and backward groups of the same layers.
bool Relocate(const MoveRules& rules, CounterRandom& random, bool both, Groups& groups,
              plan::Plan* plan) {
  const size_t choices = rules.device_choices.size();
  if (groups.empty() || choices < 2) return false;
  const plan::LayerGroup group = groups[Pick(random, groups.size())];
  const size_t next = NumberOf(rules, group.devices, choices) + 1 + Pick(random, choices - 1);
  for (Groups* of : {&plan->forward_groups, &plan->backward_groups}) {
    if (!both && of != &groups) continue;
    for (plan::LayerGroup& other : *of) {
      if (other.layers == group.layers) other.devices = rules.device_choices[next % choices];
    }
  }
  return true;
}

bool SpreadEnds(const MoveRules& rules, CounterRandom& random, plan::Plan* plan) {
  const size_t larger = rules.device_choices.size() - rules.turns;
  const size_t groups = plan->forward_groups.size() + plan->backward_groups.size();
  const size_t count = 1 + random.Below(groups), where = random.Below(3);
  const size_t begin = where != 1 ? count : 0, end = where != 0 ? count : 0;
  const size_t chosen = random.Below(larger + rules.turns);
  return Spread(rules, begin, end, chosen, plan);
}

bool SwapDevices(CounterRandom& random, Groups& groups) {
  if (groups.size() < 2) return false;
  plan::LayerGroup& a = groups[Pick(random, groups.size())];
  plan::LayerGroup& b = groups[Pick(random, groups.size())];
  if (a.devices == b.devices) return false;
  std::swap(a.devices, b.devices);
  return true;
}

bool Rotate(const MoveRules& rules, CounterRandom& random, Groups& groups) {
  if (rules.turns < 2) return false;
  const size_t by = 1 + random.Below(rules.turns - 1);
  for (plan::LayerGroup& group : groups) RotateBy(rules, by, &group);
  return !groups.empty();
}

// All forward or all backward groups are cut anew by their times, half to one and a half times as
// many of them; the devices take turns again.
bool Recut(const MoveRules& rules, CounterRandom& random, plan::Plan* plan) {
  const bool forward = random.Below(2) == 0;
  const std::vector<double>& all = forward ? rules.forward_times : rules.backward_times;
  Groups& groups = forward ? plan->forward_groups : plan->backward_groups;
  if (groups.empty() || all.empty()) return false;
  const int end = groups.back().layers.last + 1, now = static_cast<int>(groups.size());
  const int count = std::min((now + 1) / 2 + Pick(random, groups.size() + 1), end);
  const int ramp = std::min(Pick(random, 2 * rules.turns), count - 1);
  const double taper = 0.3 + 0.7 * random.NextDouble();
  groups.clear();
  const std::vector<double> times(all.begin(), all.begin() + end);
  for (const model::LayerRange& layers : TaperedPartition(times, count, ramp, taper)) {
    groups.emplace_back().layers = layers;
  }
  FitForward(plan);
  TakeTurns(rules, random.Below(rules.turns), plan);
  return true;
}

// Several changes that only together are for the better.
bool MoveTogether(const MoveRules& rules, CounterRandom& random, Groups& groups, plan::Plan* plan) {
  switch (random.Below(6)) {
    case 4:
    case 5:
      return Recut(rules, random, plan);
    case 0:
      return ShiftRuns(random, *plan);
    case 1:
      if (!(random.Below(2) == 0 ? MergeBoth(random, *plan) : SplitBoth(random, *plan))) {
        return false;
      }
      FitForward(plan);
      TakeTurns(rules, random.Below(rules.turns), plan);
      return true;
    case 2:
      TakeTurns(rules, random.Below(rules.turns), plan);
      return true;
    default: {  // two groups become one, anywhere
      if (!Merge(random, groups)) return false;
      plan::LayerGroup& moved = groups[Pick(random, groups.size())];
      moved.devices = AnyChoice(rules, random);
      return true;
    }
  }
}

bool ToggleKeep(const MoveRules& rules, CounterRandom& random, plan::Plan& plan) {
  plan::LayerGroup& group = plan.backward_groups[Pick(random, plan.backward_groups.size())];
  // One of what the rules leave open; weights always are.
  const bool stash = rules.stash == job::StashPlacement::kAuto,
             activations = MayKeepActivations(rules);
  const uint64_t others = (stash ? 1 : 0) + (activations ? 1 : 0);
  const uint64_t what = others > 0 ? random.Below(others + 1) : 0;
  if (stash && what == 0) {
    group.keep_stash = !group.keep_stash;
    group.keep_activations = group.keep_activations && group.keep_stash;
    return true;
  }
  if (activations && what + 1 == others && plan::CanKeepActivations(plan, group)) {
    group.keep_activations = !group.keep_activations;
    group.keep_stash = group.keep_stash || group.keep_activations;
    return true;
  }
  if (!plan::CanKeepWeights(plan, group)) return false;
  group.keep_weights = !group.keep_weights;
  return true;
}

bool MatchAnywhere(const MoveRules& rules, CounterRandom& random, plan::Plan* plan) {
  if (plan->backward_groups.size() < 2) return false;
  const auto g = static_cast<size_t>(Pick(random, plan->backward_groups.size() - 1));
  const plan::DeviceSet devices =
      random.Below(2) == 0 ? plan->backward_groups[g].devices : AnyChoice(rules, random);
  const std::vector<Kept> choices = KeptChoices(rules);
  Match(g, devices, choices[static_cast<size_t>(Pick(random, choices.size()))], plan);
  return true;
}

bool MoveSettings(const MoveRules& rules, CounterRandom& random, plan::Plan* plan) {
  if (rules.update && random.Below(2) == 0) {
    plan->update = plan->update == job::UpdateMode::kEager ? job::UpdateMode::kDeferred
                                                           : job::UpdateMode::kEager;
    return true;
  }
  if (rules.forward_task_sizes.size() > 1 && random.Below(2) == 0) {
    const int task_microbatches =
        rules.forward_task_sizes[Pick(random, rules.forward_task_sizes.size())];
    return std::exchange(plan->microbatches_per_forward_task, task_microbatches) !=
           task_microbatches;
  }
  const int slots = 1 + Pick(random, rules.most_slots);
  return std::exchange(plan->stream_slots, slots) != slots;
}

}  // namespace

bool RandomMove(const MoveRules& rules, CounterRandom& random, plan::Plan* plan) {
  constexpr uint64_t kSpread = 100;  // beside those that are numbered
  if (!rules.groups) {
    return random.Below(3) > 0 ? ToggleKeep(rules, random, *plan)
                               : MoveSettings(rules, random, plan);
  }
  const bool forward = random.Below(2) == 0;
  Groups& groups = forward ? plan->forward_groups : plan->backward_groups;
  bool moved = false;
  const bool larger_sets = rules.device_choices.size() > rules.turns;
  switch (larger_sets && random.Below(4) == 0 ? kSpread : random.Below(rules.together ? 22 : 18)) {
    case kSpread:
      moved = SpreadEnds(rules, random, plan);
      break;
    case 0:
    case 1:
    case 2:
    case 3:
      moved = Shift(random, groups);
      break;
    case 4:
    case 5:
    case 6:
      moved = ShiftBoth(random, *plan);
      break;
    case 7:
      moved = Merge(random, groups);
      break;
    case 8:
      moved = Split(rules, random, groups);
      break;
    case 9:
    case 10:
      moved = Relocate(rules, random, random.Below(2) == 0, groups, plan);
      break;
    case 11:
      moved = SwapDevices(random, groups);
      break;
    case 12:
      moved = Rotate(rules, random, groups);
      break;
    case 13:
      WrapAround(rules, random.Below(rules.turns), &groups);
      moved = rules.turns > 1;
      break;
    case 14:
      MirrorForward(plan);
      moved = true;
      break;
    case 15:
      moved = ToggleKeep(rules, random, *plan);
      break;
    case 16:
      moved = MatchAnywhere(rules, random, plan);
      break;
    case 17:
      moved = MoveSettings(rules, random, plan);
      break;
    default:
      moved = MoveTogether(rules, random, groups, plan);
  }
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

std::vector<Kept> KeptChoices(const MoveRules& rules) {
  if (!MayKeepActivations(rules)) return {{.weights = true}};
  return {{.weights = true}, {.activations = true}, {.weights = true, .activations = true}};
}

void Match(size_t g, const plan::DeviceSet& devices, Kept kept, plan::Plan* plan) {
  plan::LayerGroup& group = plan->backward_groups[g];
  Cut(group.layers.first, &plan->forward_groups);
  Cut(group.layers.last + 1, &plan->forward_groups);
  const auto within = [&](const plan::LayerGroup& forward) {
    return group.layers.contains(forward.layers.first);
  };
  Groups& forward = plan->forward_groups;
  const auto first = std::find_if(forward.begin(), forward.end(), within);
  const auto end = std::find_if_not(first, forward.end(), within);
  first->layers = group.layers;
  first->devices = devices;
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
      const int kept = (group.keep_weights ? 1 : 0) + (group.keep_stash ? 2 : 0) +
                       (group.keep_activations ? 4 : 0);
      add(group.devices.front() * 8 + kept);
      for (int i = 1; i < group.devices.size(); ++i) add(group.devices[i] | 0x8000);
    }
  }
  return key;
}

}  // namespace harmony::planner
