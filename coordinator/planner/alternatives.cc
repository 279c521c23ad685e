#include "coordinator/planner/alternatives.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/planner/grouping.h"

namespace harmony {
namespace {

class Comparison {
 public:
  Comparison(const PlanBuilder& builder, const Estimate& estimate, const CostModel& costs)
      : builder_(builder), estimate_(estimate), costs_(costs) {}

  void Try(std::string what, Plan plan) {
    Alternative other;
    other.what = std::move(what);
    StepVisits step;
    other.fits = builder_.Complete(&plan, &step) && builder_.FitsHost(plan);
    absl::StatusOr<Estimate> estimate = absl::ResourceExhaustedError("");
    if (other.fits) estimate = EvaluatePlan(builder_.model(), plan, costs_);
    other.fits = other.fits && estimate.ok();
    if (other.fits) {
      other.step = estimate->step;
      other.why = Why(*estimate);
    } else {
      other.why = "does not fit the memory";
    }
    found_.push_back(std::move(other));
  }

  std::vector<Alternative> Take() {
    std::stable_sort(found_.begin(), found_.end(), [](const auto& a, const auto& b) {
      return std::pair(!a.fits, a.step) < std::pair(!b.fits, b.step);
    });
    return std::move(found_);
  }

 private:
  // The lane that has got most more to do.
  std::string Why(const Estimate& other) const {
    if (other.step <= estimate_.step) {
      return "not slower, but it takes more of the host's memory or moves more bytes";
    }
    const LaneTable table((static_cast<int>(estimate_.lanes.size()) - 2) / 5);
    Nanos most;
    int lane = -1;
    for (size_t i = 0; i < estimate_.lanes.size(); ++i) {
      const Nanos more = other.lanes[i].busy - estimate_.lanes[i].busy;
      if (more <= most) continue;
      most = more;
      lane = static_cast<int>(i);
    }
    // Small changes do not explain a longer step.
    if (lane < 0 || most * 10 < other.step - estimate_.step) {
      return "tasks and copies wait longer for each other";
    }
    return absl::StrCat(DebugString(table.LaneAt(lane)), " has ", FormatDuration(most),
                        " more to do");
  }

  const PlanBuilder& builder_;
  const Estimate& estimate_;
  const CostModel& costs_;
  std::vector<Alternative> found_;
};

void TryStashes(const Plan& plan, bool keep, Comparison& comparison) {
  Plan other = plan;
  bool changed = false;
  for (LayerGroup& group : other.backward_groups) {
    changed = changed || group.keep_stash != keep;
    group.keep_stash = keep;
    group.keep_activations = group.keep_activations && keep;
  }
  if (!changed) return;
  comparison.Try(keep ? "all stashes kept on the devices" : "all stashes on the host", other);
}

// The next smaller and the next larger forward tasks.
void TrySpans(const MoveRules& rules, const Plan& plan, Comparison& comparison) {
  if (plan.forward_groups.empty()) return;
  const auto now = std::find(rules.spans.begin(), rules.spans.end(), plan.forward_span);
  for (auto span = rules.spans.begin(); span != rules.spans.end(); ++span) {
    if (std::abs(span - now) != 1) continue;
    Plan other = plan;
    other.forward_span = *span;
    comparison.Try(absl::StrCat("forward tasks of ", other.forward_size(), " sequences instead of ",
                                plan.forward_size()),
                   other);
  }
}

void TryActivations(const Plan& plan, Comparison& comparison) {
  Plan all = plan, none = plan;
  bool more = false, less = false;
  for (size_t g = 0; g < plan.backward_groups.size(); ++g) {
    less |= std::exchange(none.backward_groups[g].keep_activations, false);
    LayerGroup& group = all.backward_groups[g];
    if (group.keep_activations || !CanKeepActivations(plan, group)) continue;
    group.keep_stash = group.keep_activations = more = true;
  }
  if (less) comparison.Try("every backward recomputes, no activations kept", none);
  if (more) comparison.Try("nothing recomputed, activations kept where it can be", all);
}

}  // namespace

std::vector<Alternative> CompareAlternatives(const PlanBuilder& builder, const MoveRules& rules,
                                             const Plan& plan, const Estimate& estimate,
                                             const CostModel& costs) {
  Comparison comparison(builder, estimate, costs);
  if (rules.update) {
    Plan other = plan;
    const bool eager = plan.update == UpdateMode::kEager;
    other.update = eager ? UpdateMode::kDeferred : UpdateMode::kEager;
    comparison.Try(eager ? "updates deferred" : "updates eager", other);
  }
  for (int slots : {plan.stream_slots - 1, plan.stream_slots + 1}) {
    if (slots < 1 || slots > rules.most_slots) continue;
    Plan other = plan;
    other.stream_slots = slots;
    comparison.Try(absl::StrCat(slots, " buffer slots instead of ", plan.stream_slots), other);
  }
  TrySpans(rules, plan, comparison);
  Plan loaded = plan;
  bool kept = false;
  for (LayerGroup& group : loaded.backward_groups) kept |= std::exchange(group.keep_weights, false);
  if (kept) comparison.Try("no weights kept from forward to backward", loaded);
  if (MayKeepActivations(rules)) TryActivations(plan, comparison);
  if (rules.stash == StashPlacement::kAuto) {
    TryStashes(plan, false, comparison);
    TryStashes(plan, true, comparison);
  }
  if (rules.groups) {
    const int devices = DeviceChoices(plan);
    const int layers = builder.model().num_layers();
    for (int rounds : {1, 2, 4}) {
      const int groups = std::min(rounds * devices, layers);
      Plan other = plan;
      other.backward_groups.clear();
      const std::vector<double> even(layers, 1), shares(groups, 1);
      for (const LayerRange& range : ProportionalPartition(even, shares)) {
        other.backward_groups.emplace_back().layers = range;
      }
      WrapAround(devices, 0, &other.backward_groups);
      MirrorForward(&other);
      PlaceStashes(rules, &other);
      comparison.Try(absl::StrCat(groups, " equal groups", devices > 1 ? " wrapped around" : "",
                                  ", forward = backward"),
                     other);
    }
  }
  return comparison.Take();
}

}  // namespace harmony
