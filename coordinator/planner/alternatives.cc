#include "coordinator/planner/alternatives.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/planner/grouping.h"

namespace harmony {
namespace {

// In words, "device 1 computes" for so much longer. Lanes that do the same thing go together.
std::string DoesLonger(const Lane& lane, const std::string& longer) {
  const std::string device = absl::StrCat("device ", lane.device);
  switch (lane.kind) {
    case LaneKind::kCompute:
      return absl::StrCat(device, " computes ", longer);
    case LaneKind::kH2DBulk:
    case LaneKind::kH2DStream:
      return absl::StrCat("copies from the host to ", device, " take ", longer);
    case LaneKind::kD2H:
      return absl::StrCat("copies from ", device, " to the host take ", longer);
    case LaneKind::kP2P:
      return absl::StrCat("copies from ", device, " to other devices take ", longer);
    case LaneKind::kHostCompute:
      return absl::StrCat("the host's updates take ", longer);
    case LaneKind::kHostIo:
      return absl::StrCat("reading the data takes ", longer);
  }
  return "";
}

Bytes HostCopies(const Estimate& estimate) {
  return Bytes(std::accumulate(estimate.bytes.begin(), estimate.bytes.end(), int64_t{0}));
}

class Comparison {
 public:
  Comparison(const PlanBuilder& builder, const Plan& plan, const Estimate& estimate,
             const CostModel& costs)
      : builder_(builder), plan_(plan), estimate_(estimate), costs_(costs), known_{KeyOf(plan)} {}

  // Nothing is said of what is the plan itself, was said already, or is as good.
  void Try(std::string what, Plan plan) {
    StepVisits step;
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
                   EvaluatePlan(builder_.model(), plan, costs_, {.steps = StepsToRun(plan)});
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
  std::string Why(const Plan& plan, const Estimate& other) const {
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
    const LaneTable table(static_cast<int>(plan_.devices.size()));
    std::map<Lane, Nanos> longer;
    for (int i = 0; i < table.size(); ++i) {
      Lane lane = table.LaneAt(i);
      if (lane.kind == LaneKind::kH2DStream) lane.kind = LaneKind::kH2DBulk;  // one link
      longer[lane] += other.lanes[i].busy - estimate_.lanes[i].busy;
    }
    const auto most =
        std::max_element(longer.begin(), longer.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most->second * 2 < other.step - estimate_.step) {
      return "tasks and copies wait longer for each other";
    }
    return DoesLonger(most->first, absl::StrCat(FormatDuration(most->second), " longer"));
  }

  static constexpr double kEqual = 5e-4;  // or both are printed the same

  const PlanBuilder& builder_;
  const Plan& plan_;
  const Estimate& estimate_;
  const CostModel& costs_;
  std::set<std::string> known_;
  std::vector<Alternative> found_;
};

void TryStashes(const Plan& plan, bool keep, Comparison& comparison) {
  Plan other = plan;
  bool changed = false, recomputes = false;
  for (LayerGroup& group : other.backward_groups) {
    changed = changed || group.keep_stash != keep;
    group.keep_stash = keep;
    if (!keep) recomputes |= std::exchange(group.keep_activations, false);
  }
  if (!changed) return;
  comparison.Try(keep         ? "all stashes kept on the devices"
                 : recomputes ? "all stashes on the host, every backward recomputes"
                              : "all stashes on the host",
                 other);
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
  Comparison comparison(builder, plan, estimate, costs);
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
    comparison.Try(absl::StrCat(slots, slots == 1 ? " buffer" : " buffers",
                                " for each kind of activations instead of ", plan.stream_slots),
                   other);
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
      comparison.Try(
          absl::StrCat(groups, groups == 1 ? " group" : " groups of equally many layers"), other);
    }
  }
  return comparison.Take();
}

}  // namespace harmony
