#include "coordinator/planner/report/alternatives.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "coordinator/planner/report/lane_words.h"
#include "coordinator/planner/search/grouping.h"
#include "coordinator/planner/search/placement.h"

namespace harmony::planner {
namespace {

Bytes HostCopies(const Estimate& estimate) {
  return Bytes(std::accumulate(estimate.bytes.begin(), estimate.bytes.end(), int64_t{0}));
}

class Comparison {
 public:
  Comparison(const PlanBuilder& builder, const plan::Plan& plan, const Estimate& estimate,
             const dispatch::CostModel& costs)
      : builder_(builder), plan_(plan), estimate_(estimate), costs_(costs), known_{KeyOf(plan)} {}

  // Nothing is said of what is the plan itself, was said already, or is as good.
  void Try(std::string what, plan::Plan plan) {
    StepExecutions step;
    const bool fits_devices = builder_.Complete(&plan, &step);
    if (!known_.insert(KeyOf(plan)).second) return;
    Alternative other;
    other.what = std::move(what);
    other.fits = false;
    if (!fits_devices) {
      other.why = "does not fit the memory of the devices";
    } else if (!builder_.FitsHost(plan)) {
      other.why = "does not fit the memory of the host";
    } else if (const absl::StatusOr<Estimate> estimate =
                   EvaluatePlan(builder_.model(), plan, costs_);
               estimate.ok()) {
      other.fits = true;
      other.step = estimate->step;
      other.why = Why(plan, *estimate);
    } else {
      other.why = "its groups do not get their memory one after the other";
    }
    if (!other.why.empty()) found_.push_back(std::move(other));
  }

  std::vector<Alternative> Take() {
    std::stable_sort(found_.begin(), found_.end(), [](const auto& a, const auto& b) {
      return std::pair(!a.fits, a.step) < std::pair(!b.fits, b.step);
    });
    return std::move(found_);
  }

 private:
  // Empty: no reason, it is as good.
  std::string Why(const plan::Plan& plan, const Estimate& other) const {
    const double ratio = other.step.seconds() / estimate_.step.seconds();
    if (ratio > 1 + kEqual) return WhySlower(other);
    const std::string fast = ratio < 1 - kEqual ? "faster, but " : "as fast, but ";
    const Bytes memory = builder_.ArenaBytes(plan) - builder_.ArenaBytes(plan_);
    if (memory.count() > 0 &&
        builder_.Score(plan, other.step) >= builder_.Score(plan_, estimate_.step)) {
      return absl::StrCat(fast, "takes ", FormatBytes(memory), " more of the host's memory");
    }
    if (ratio < 1 - kEqual) return "faster: the search did not come across it";
    const Bytes copies = HostCopies(other) - HostCopies(estimate_);
    if (static_cast<double>(copies.count()) > kEqual * HostCopies(estimate_).count()) {
      return absl::StrCat(fast, "copies ", FormatBytes(copies), " more a step");
    }
    return "";
  }

  // What takes longer, if that is most of it.
  std::string WhySlower(const Estimate& other) const {
    const command::LaneTable table(static_cast<int>(plan_.devices.size()));
    std::map<command::Lane, Nanos> longer;
    for (int i = 0; i < table.size(); ++i) {
      command::Lane lane = table.LaneAt(i);
      if (lane.kind == command::LaneKind::kH2DStream)
        lane.kind = command::LaneKind::kH2DBulk;  // one link
      longer[lane] += other.lanes[i].busy - estimate_.lanes[i].busy;
    }
    const auto most =
        std::max_element(longer.begin(), longer.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most->second * 2 < other.step - estimate_.step) {
      return "tasks and copies wait longer for each other";
    }
    return absl::Substitute(WordsOf(most->first.kind).longer, most->first.device,
                            absl::StrCat(FormatDuration(most->second), " longer"));
  }

  static constexpr double kEqual = 5e-4;  // or both are printed the same

  const PlanBuilder& builder_;
  const plan::Plan& plan_;
  const Estimate& estimate_;
  const dispatch::CostModel& costs_;
  std::set<std::string> known_;
  std::vector<Alternative> found_;
};

void TryStashes(const MoveRules& rules, const plan::Plan& plan, bool keep, Comparison& comparison) {
  MoveRules placed = rules;
  placed.stash = keep ? job::StashPlacement::kDevice : job::StashPlacement::kHost;
  plan::Plan other = plan;
  PlaceStashes(placed, &other);
  bool recomputes = false;
  for (size_t g = 0; g < plan.backward_groups.size(); ++g) {
    recomputes |=
        plan.backward_groups[g].keep_activations && !other.backward_groups[g].keep_activations;
  }
  comparison.Try(absl::StrCat(keep ? "all stashes kept on the devices" : "all stashes on the host",
                              recomputes ? ", every backward recomputes" : ""),
                 std::move(other));
}

// The next smaller and the next larger forward tasks.
void TryForwardTaskSizes(const MoveRules& rules, const plan::Plan& plan, Comparison& comparison) {
  if (plan.forward_groups.empty()) return;
  const auto now = std::find(rules.forward_task_sizes.begin(), rules.forward_task_sizes.end(),
                             plan.microbatches_per_forward_task);
  for (auto task_microbatches = rules.forward_task_sizes.begin();
       task_microbatches != rules.forward_task_sizes.end(); ++task_microbatches) {
    if (std::abs(task_microbatches - now) != 1) continue;
    plan::Plan other = plan;
    other.microbatches_per_forward_task = *task_microbatches;
    comparison.Try(absl::StrCat("forward tasks of ", other.forward_size(), " sequences instead of ",
                                plan.forward_size()),
                   other);
  }
}

void TryActivations(const plan::Plan& plan, Comparison& comparison) {
  plan::Plan all = plan, none = plan;
  for (plan::LayerGroup& group : none.backward_groups) group.keep_activations = false;
  for (plan::LayerGroup& group : all.backward_groups) {
    group.keep_activations = group.keep_activations || plan::CanKeepActivations(plan, group);
    group.keep_stash = group.keep_stash || group.keep_activations;
  }
  comparison.Try("every backward recomputes, no activations kept", none);
  comparison.Try("nothing recomputed, activations kept where it can be", all);
}

}  // namespace

std::vector<Alternative> CompareAlternatives(const PlanBuilder& builder, const MoveRules& rules,
                                             const plan::Plan& plan, const Estimate& estimate,
                                             const dispatch::CostModel& costs) {
  Comparison comparison(builder, plan, estimate, costs);
  if (rules.update) {
    plan::Plan other = plan;
    const bool eager = plan.update == job::UpdateMode::kEager;
    other.update = eager ? job::UpdateMode::kDeferred : job::UpdateMode::kEager;
    comparison.Try(eager ? "updates deferred" : "updates eager", other);
  }
  for (int slots : {plan.stream_slots - 1, plan.stream_slots + 1}) {
    if (slots < 1 || slots > rules.most_slots) continue;
    plan::Plan other = plan;
    other.stream_slots = slots;
    comparison.Try(absl::StrCat(slots, slots == 1 ? " buffer" : " buffers",
                                " for each kind of activations instead of ", plan.stream_slots),
                   other);
  }
  TryForwardTaskSizes(rules, plan, comparison);
  plan::Plan loaded = plan;
  for (plan::LayerGroup& group : loaded.backward_groups) group.keep_weights = false;
  comparison.Try("no weights kept from forward to backward", loaded);
  if (MayKeepActivations(rules)) TryActivations(plan, comparison);
  if (rules.stash == job::StashPlacement::kAuto) {
    TryStashes(rules, plan, false, comparison);
    TryStashes(rules, plan, true, comparison);
  }
  if (rules.groups) {
    const int devices = static_cast<int>(rules.turns);
    const int layers = builder.model().num_layers();
    for (int rounds : {1, 2, 4}) {
      const int groups = std::min(rounds * devices, layers);
      plan::Plan other = plan;
      other.backward_groups.clear();
      const std::vector<double> even(layers, 1), shares(groups, 1);
      for (const model::LayerRange& range : ProportionalPartition(even, shares)) {
        other.backward_groups.emplace_back().layers = range;
      }
      WrapAround(rules, 0, &other.backward_groups);
      MirrorForward(&other);
      PlaceStashes(rules, &other);
      comparison.Try(
          absl::StrCat(groups, groups == 1 ? " group" : " groups of equally many layers"), other);
    }
  }
  return comparison.Take();
}

}  // namespace harmony::planner
