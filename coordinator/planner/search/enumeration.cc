#include "coordinator/planner/search/enumeration.h"

#include <algorithm>

namespace harmony::planner {
namespace {

class Enumeration {
 public:
  Enumeration(int layers, const plan::Plan& shape, const MoveRules& rules,
              const std::function<void(const plan::Plan&)>& take)
      : layers_(layers), plan_(shape), rules_(rules), take_(take) {}

  void Run() { Backward(0, 0); }

 private:
  // How many devices have been used when the next group is on these and `named` were before; -1:
  // they are not to be looked at. Of alike devices, those that are new come in order: others differ
  // in their names only. (Not so where some choices are of several devices, for there is not one
  // for each set of names.)
  int Named(const plan::DeviceSet& devices, int named) const {
    for (int device : devices) {
      const bool single = rules_.device_choices.size() == rules_.turns;
      if (rules_.alike_devices && single && device > named) return -1;
      named = std::max(named, device + 1);
    }
    return named;
  }

  void Backward(int first, int named) {
    if (first == layers_) {
      Forward(0, named);
      return;
    }
    for (int last = first; last < layers_; ++last) {
      for (const plan::DeviceSet& devices : rules_.device_choices) {
        const int now = Named(devices, named);
        if (now < 0) continue;
        plan_.backward_groups.push_back({{first, last}, devices});
        Backward(last + 1, now);
        plan_.backward_groups.pop_back();
      }
    }
  }

  void Forward(int first, int named) {
    const int end = plan_.backward_groups.back().layers.first;
    if (first == end) {
      Keeps(0);
      return;
    }
    for (int last = first; last < end; ++last) {
      for (const plan::DeviceSet& devices : rules_.device_choices) {
        const int now = Named(devices, named);
        if (now < 0) continue;
        plan_.forward_groups.push_back({{first, last}, devices});
        Forward(last + 1, now);
        plan_.forward_groups.pop_back();
      }
    }
  }

  void Keeps(size_t index) {
    if (index == plan_.backward_groups.size()) return Settings();
    plan::LayerGroup& group = plan_.backward_groups[index];
    const bool fused = index + 1 == plan_.backward_groups.size();
    const bool stash = (fused ? group.layers.first : plan::StashBoundary(group)) > 0;
    for (bool keep_weights : {false, true}) {
      if (keep_weights && !plan::CanKeepWeights(plan_, group)) continue;
      for (bool keep_stash : {false, true}) {
        if (keep_stash && (!stash || rules_.stash == job::StashPlacement::kHost)) continue;
        if (keep_stash && !plan::CanKeepStash(plan_, group)) continue;
        if (!keep_stash && stash && rules_.stash == job::StashPlacement::kDevice &&
            plan::CanKeepStash(plan_, group)) {
          continue;
        }
        for (bool keep_activations : {false, true}) {
          const bool can = keep_stash && MayKeepActivations(rules_);
          if (keep_activations && !(can && plan::CanKeepActivations(plan_, group))) continue;
          group.keep_weights = keep_weights;
          group.keep_stash = keep_stash;
          group.keep_activations = keep_activations;
          Keeps(index + 1);
        }
      }
    }
    group.keep_weights = group.keep_stash = group.keep_activations = false;
  }

  bool KeepsActivations() const {
    return std::any_of(plan_.backward_groups.begin(), plan_.backward_groups.end(),
                       [](const plan::LayerGroup& group) { return group.keep_activations; });
  }

  void Settings() {
    const job::UpdateMode given = plan_.update;
    for (job::UpdateMode update : {job::UpdateMode::kEager, job::UpdateMode::kDeferred}) {
      if (!rules_.update && update != given) continue;
      plan_.update = update;
      for (int slots = 1; slots <= rules_.most_slots; ++slots) {
        plan_.stream_slots = slots;
        for (int task_microbatches : rules_.forward_task_sizes) {
          if (task_microbatches > 1 && (plan_.forward_groups.empty() || KeepsActivations()))
            continue;
          plan_.microbatches_per_forward_task = task_microbatches;
          take_(plan_);
        }
        plan_.microbatches_per_forward_task = 1;
      }
    }
    plan_.update = given;
  }

  const int layers_;
  plan::Plan plan_;
  const MoveRules& rules_;
  const std::function<void(const plan::Plan&)>& take_;
};

}  // namespace

void EnumeratePlans(int layers, const plan::Plan& shape, const MoveRules& rules,
                    const std::function<void(const plan::Plan&)>& take) {
  Enumeration(layers, shape, rules, take).Run();
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
