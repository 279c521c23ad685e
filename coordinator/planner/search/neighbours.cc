#include "coordinator/planner/search/neighbours.h"

#include <algorithm>
#include <utility>

#include "coordinator/planner/search/boundaries.h"
#include "coordinator/planner/search/placement.h"

namespace harmony::planner {
namespace {

enum class Which { kForward, kBackward, kBoth };
constexpr Which kEach[] = {Which::kForward, Which::kBackward, Which::kBoth};

// The layers on one side of the new boundary run on `devices`, the others where they were.
void AddBoundary(Groups& groups, int at, bool upper, const plan::DeviceSet& devices) {
  if (!Cut(at, &groups)) return;
  groups[BeginningAt(groups, at) - (upper ? 0 : 1)].devices = devices;
}

class Neighbours {
 public:
  Neighbours(const MoveRules& rules, const plan::Plan& plan,
             absl::FunctionRef<void(plan::Plan)> take)
      : rules_(rules),
        plan_(plan),
        take_(take),
        layers_(plan.backward_groups.back().layers.last + 1) {}

  void Run() {
    if (rules_.groups) {
      for (Which which : kEach) {
        Boundaries(which);
        Devices(which);
      }
      SwapDevices(&plan::Plan::forward_groups);
      SwapDevices(&plan::Plan::backward_groups);
      Turns();
      Spreads();
    }
    Keeps();
    Settings();
  }

 private:
  template <typename Change>
  void GiveChanged(Which which, Change change) {
    plan::Plan plan = plan_;
    if (which != Which::kBackward) change(plan.forward_groups);
    if (which != Which::kForward) change(plan.backward_groups);
    Give(std::move(plan));
  }

  void Give(plan::Plan plan) {
    FitForward(&plan);
    PlaceStashes(rules_, &plan);
    take_(std::move(plan));
  }

  const Groups& Of(Which which) const {
    return which == Which::kForward ? plan_.forward_groups : plan_.backward_groups;
  }

  void Boundaries(Which which) {
    const Groups& groups = Of(which);
    for (size_t i = 1; i < groups.size(); ++i) {
      const int at = groups[i].layers.first;
      for (int to = groups[i - 1].layers.first + 1; to <= groups[i].layers.last; ++to) {
        if (to != at)
          GiveChanged(which, [&](Groups& of) {
            const size_t at_it = BeginningAt(of, at);
            if (at_it > 0) ShiftBoundaries(at_it, at_it, to - at, &of);
          });
      }
      for (bool upper : {false, true}) {
        GiveChanged(which, [&](Groups& of) { RemoveBoundary(at, upper, &of); });
      }
    }
    for (int at = 1; at < layers_; ++at) {
      if (BeginningAt(groups, at) != 0) continue;
      for (bool upper : {false, true}) {
        for (const plan::DeviceSet& devices : rules_.device_choices) {
          GiveChanged(which, [&](Groups& of) { AddBoundary(of, at, upper, devices); });
        }
      }
      if (which == Which::kBoth) NewForward(at);
    }
  }

  // The fused group becomes two, and the forward groups one more.
  void NewForward(int at) {
    if (at <= plan_.backward_groups.back().layers.first) return;
    for (const plan::DeviceSet& devices : rules_.device_choices) {
      for (bool upper : {false, true}) {
        plan::Plan plan = plan_;
        AddBoundary(plan.backward_groups, at, upper, devices);
        plan::LayerGroup more = plan.backward_groups[plan.backward_groups.size() - 2];
        more.keep_weights = more.keep_stash = more.keep_activations = false;
        plan.forward_groups.push_back(more);
        Give(std::move(plan));
      }
    }
  }

  void Devices(Which which) {
    if (rules_.device_choices.size() < 2) return;
    const Groups& groups = Of(which);
    for (const plan::LayerGroup& group : groups) {
      for (const plan::DeviceSet& devices : rules_.device_choices) {
        if (devices == group.devices) continue;
        GiveChanged(which, [&](Groups& of) {
          for (plan::LayerGroup& other : of) {
            if (other.layers == group.layers) other.devices = devices;
          }
        });
      }
    }
    for (size_t by = 0; by < rules_.turns; ++by) {
      if (by > 0) {
        GiveChanged(which, [&](Groups& of) {
          for (plan::LayerGroup& group : of) RotateBy(rules_, by, &group);
        });
      }
      GiveChanged(which, [&](Groups& of) { WrapAround(rules_, by, &of); });
    }
  }

  void SwapDevices(Groups plan::Plan::*of) {
    const Groups& groups = plan_.*of;
    for (size_t a = 0; a < groups.size(); ++a) {
      for (size_t b = a + 1; b < groups.size(); ++b) {
        if (groups[a].devices == groups[b].devices) continue;
        plan::Plan plan = plan_;
        std::swap((plan.*of)[a].devices, (plan.*of)[b].devices);
        Give(std::move(plan));
      }
    }
  }

  void Turns() {
    plan::Plan plan = plan_;
    MirrorForward(&plan);
    Give(plan);
    for (size_t first = 0; rules_.turns > 1 && first < rules_.turns; ++first) {
      plan = plan_;
      TakeTurns(rules_, first, &plan);
      Give(std::move(plan));
    }
  }

  void Spreads() {
    const size_t choices = rules_.device_choices.size();
    if (choices == rules_.turns) return;
    const size_t groups = plan_.forward_groups.size() + plan_.backward_groups.size();
    for (size_t chosen = 0; chosen < choices; ++chosen) {
      for (size_t count = 1; count <= groups; ++count) {
        for (const auto& [begin, end] : {std::pair(count, size_t{0}), {0, count}, {count, count}}) {
          plan::Plan plan = plan_;
          if (Spread(rules_, begin, end, chosen, &plan)) Give(std::move(plan));
        }
      }
    }
  }

  void Keeps() {
    for (size_t g = 0; g < plan_.backward_groups.size(); ++g) {
      const plan::LayerGroup& group = plan_.backward_groups[g];
      const auto give = [&](bool plan::LayerGroup::*what) {
        plan::Plan plan = plan_;
        bool& kept = plan.backward_groups[g].*what;
        kept = !kept;
        plan::LayerGroup& changed = plan.backward_groups[g];
        if (what == &plan::LayerGroup::keep_activations) changed.keep_stash |= kept;
        if (what == &plan::LayerGroup::keep_stash) changed.keep_activations &= kept;
        Give(std::move(plan));
      };
      if (plan::CanKeepWeights(plan_, group)) give(&plan::LayerGroup::keep_weights);
      if (rules_.stash == job::StashPlacement::kAuto) give(&plan::LayerGroup::keep_stash);
      if (MayKeepActivations(rules_) && plan::CanKeepActivations(plan_, group)) {
        give(&plan::LayerGroup::keep_activations);
      }
      if (rules_.groups && g + 1 < plan_.backward_groups.size()) MatchOf(g);
    }
  }

  void MatchOf(size_t g) {
    const plan::DeviceSet& now = plan_.backward_groups[g].devices;
    for (const Kept& kept : KeptChoices(rules_)) {
      const auto give = [&](const plan::DeviceSet& devices) {
        plan::Plan plan = plan_;
        Match(g, devices, kept, &plan);
        Give(std::move(plan));
      };
      give(now);
      for (const plan::DeviceSet& devices : rules_.device_choices) {
        if (devices != now) give(devices);
      }
    }
  }

  void Settings() {
    const auto give = [&](auto set) {
      plan::Plan plan = plan_;
      set(plan);
      Give(std::move(plan));
    };
    if (rules_.update) {
      const bool eager = plan_.update == job::UpdateMode::kEager;
      give([&](plan::Plan& p) {
        p.update = eager ? job::UpdateMode::kDeferred : job::UpdateMode::kEager;
      });
    }
    for (int slots = 1; slots <= rules_.most_slots; ++slots) {
      if (slots != plan_.stream_slots) give([&](plan::Plan& p) { p.stream_slots = slots; });
    }
    for (int task_microbatches : rules_.forward_task_sizes) {
      if (task_microbatches != plan_.microbatches_per_forward_task)
        give([&](plan::Plan& p) { p.microbatches_per_forward_task = task_microbatches; });
    }
  }

  const MoveRules& rules_;
  const plan::Plan& plan_;
  const absl::FunctionRef<void(plan::Plan)> take_;
  const int layers_;
};

}  // namespace

void ForEachNeighbour(const MoveRules& rules, const plan::Plan& plan,
                      absl::FunctionRef<void(plan::Plan)> take) {
  Neighbours(rules, plan, take).Run();
}

}  // namespace harmony::planner
