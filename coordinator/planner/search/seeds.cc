#include "coordinator/planner/search/seeds.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "common/model/model_sizes.h"
#include "coordinator/planner/search/grouping.h"
#include "coordinator/planner/search/placement.h"

namespace harmony::planner {
namespace {

// Above this the optimal partition takes too long; shares of the whole are nearly as even.
constexpr int kMostLayersToBalance = 100;
// Of the plans that a search has found, the best and some others: what is best there need not be
// here. Each brings dozens of plans like it, which are run dry.
constexpr size_t kMostHandedOn = 4;
// Groups at an end of the step that get another set of devices together. Annealing goes on from
// there, one group at a time.
constexpr size_t kMostAtEnds = 3;
// The last group, with all that fits; then so much smaller, as parts of what it has: it recomputes
// nothing, but while it has all memory the next weights cannot come.
constexpr double kSmallerLast[] = {0, 0.25, 0.5};
// Groups that end a step take half the time of those before them, so that what is left to do after
// the last gradients halves with each; in one round of the devices, or three groups where there are
// fewer devices: what is left is an eighth then, and each group has fixed costs of its own.
constexpr double kTaper = 0.5;
constexpr int kLeastRamp = 3;

class Seeds {
 public:
  Seeds(const PlanBuilder& builder, TaskCosts& costs, const MoveRules& rules)
      : builder_(builder),
        model_(builder.model()),
        rules_(rules),
        choices_(static_cast<int>(rules.turns)) {
    const int layers = model_.num_layers();
    const plan::Plan shape = builder.Blank();
    speed_.assign(choices_, 0);
    for (int layer = 0; layer < layers; ++layer) {
      Nanos sum;
      for (int d = 0; d < choices_; ++d) {
        const Nanos one = costs.ComputeAlone(layer, Turn(rules, d).front());
        sum += one;
        speed_[d] += one.seconds();
      }
      time_.push_back(sum.seconds());
      const Bytes bytes = model::WorkspaceBound(model_, model::WorkspaceOf::kBackward,
                                                {layer, layer}, shape.microbatch_size) +
                          model::LayerParameterBytes(model_, layer) +
                          model::LayerAccumulatorBytes(model_, layer);
      memory_.push_back(static_cast<double>(bytes.count()));
    }
    for (double& speed : speed_) speed = speed > 0 ? 1 / speed : 1;
    if (layers > kMostLayersToBalance) return;
    for (int i : {0, 1}) {
      const std::vector<double>& costs_of = i == 0 ? time_ : memory_;
      tables_[i] = CostTable(layers, [&](model::LayerRange range) {
        double all = 0;
        for (int layer = range.first; layer <= range.last; ++layer) all += costs_of[layer];
        return all;
      });
    }
  }

  std::vector<plan::Plan> Run(const std::vector<model::LayerRange>& partition) {
    for (std::vector<int>& devices : DeviceSets()) {
      devices_ = std::move(devices);
      added_.clear();
      if (!partition.empty()) {
        Add(partition);
      } else {
        for (int groups : Counts()) AddBalanced(groups);
        if (num_devices() == choices_) AddWithLargeLast();
      }
    }
    return std::move(plans_);
  }

 private:
  int num_devices() const { return static_cast<int>(devices_.size()); }

  // All devices; then ever fewer, which may wait less for each other. Where they are unlike those
  // with the most memory: a small one may have no room for any group.
  std::vector<std::vector<int>> DeviceSets() const {
    std::vector<int> all(choices_);
    std::iota(all.begin(), all.end(), 0);
    std::vector<std::vector<int>> sets = {all};
    const std::vector<plan::DevicePlan> devices = builder_.Blank().devices;
    std::stable_sort(all.begin(), all.end(),
                     [&](int a, int b) { return devices[a].memory > devices[b].memory; });
    while (all.size() > 1) {
      all.pop_back();
      std::vector<int>& fewer = sets.emplace_back(all);
      std::sort(fewer.begin(), fewer.end());
    }
    return sets;
  }

  std::vector<int> Counts() const {
    const int layers = model_.num_layers();
    std::set<int> counts;
    if (layers > kMostLayersToBalance * 2) {  // each of them takes long
      for (int rounds : {1, 2, 4, 8, 16, 32, layers}) {
        counts.insert(std::min(rounds * num_devices(), layers));
      }
      return {counts.begin(), counts.end()};
    }
    counts = {1, 2, layers};
    if (layers <= 24) {
      for (int count = 1; count <= layers; ++count) counts.insert(count);
    }
    for (int rounds : {1, 2, 3, 4, 6, 8, 12, 16, 24}) {
      counts.insert({rounds * num_devices(), rounds * num_devices() + 1});
    }
    std::vector<int> result;
    for (int count : counts) {
      if (count <= layers) result.push_back(count);
    }
    return result;
  }

  void AddBalanced(int groups) {
    if (!tables_[0].empty()) {
      Add(BalancedPartition(groups, tables_[0]));
      Add(BalancedPartition(groups, tables_[1]));
    }
    std::vector<double> shares(groups, 1);
    Add(ProportionalPartition(time_, shares));
    Add(ProportionalPartition(memory_, shares));
    // The last one, which recomputes nothing, larger than those that others are loaded beside.
    shares.back() = 2;
    Add(ProportionalPartition(time_, shares));
    for (int g = 0; g < groups; ++g) shares[g] = speed_[devices_[g % num_devices()]];
    Add(ProportionalPartition(time_, shares));
    // The first groups ever smaller towards layer 0, where a pipeline fills and drains.
    if (groups <= num_devices()) return;
    for (double taper : {0.75, 0.5}) Add(TaperedPartition(time_, groups, num_devices(), taper));
  }

  // The last group recomputes nothing, so that it may be worth all memory there is.
  void AddWithLargeLast() {
    const int layers = model_.num_layers();
    if (layers > kMostLayersToBalance * 2) return;  // to look what fits takes long
    const int least = FirstOfLargestLast();
    for (double smaller : kSmallerLast) {
      const int first = least + static_cast<int>((layers - 1 - least) * smaller);
      if (first == 0) continue;
      const std::vector<double> times(time_.begin(), time_.begin() + first);
      const auto add = [&](std::vector<model::LayerRange> partition) {
        partition.push_back({first, layers - 1});
        Add(partition);
      };
      for (int groups : Counts()) {
        if (groups > first) break;
        add(ProportionalPartition(times, std::vector<double>(groups, 1)));
        const int ramp = std::min(std::max(num_devices(), kLeastRamp), groups - 1);
        if (ramp > 0) add(TaperedPartition(times, groups, ramp, kTaper));
      }
    }
  }

  // The layer that it begins with, where each layer before it is a group of its own.
  int FirstOfLargestLast() const {
    const int layers = model_.num_layers();
    int low = 0, high = layers - 1;  // at `high` it fits, as far as anything does
    while (low < high) {
      const int middle = (low + high) / 2;
      std::vector<model::LayerRange> partition;
      for (int layer = 0; layer < middle; ++layer) partition.push_back({layer, layer});
      partition.push_back({middle, layers - 1});
      plan::Plan plan = PlanOf(partition);
      PlaceStashes(rules_, &plan);
      StepExecutions step;
      if (builder_.Complete(&plan, &step)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return high;
  }

  plan::Plan PlanOf(const std::vector<model::LayerRange>& partition) const {
    plan::Plan plan = builder_.Blank();
    for (const model::LayerRange& layers : partition)
      plan.backward_groups.emplace_back().layers = layers;
    for (size_t g = 0; g < plan.backward_groups.size(); ++g) {
      plan.backward_groups[g].devices = Turn(rules_, devices_[g % devices_.size()]);
    }
    MirrorForward(&plan);
    plan.stream_slots = std::min(2, rules_.most_slots);
    return plan;
  }

  void Add(const std::vector<model::LayerRange>& partition) {
    if (!added_.insert(partition).second) return;
    const plan::Plan plan = PlanOf(partition);
    AddPlan(plan);
    // Where a pipeline fills and drains all devices run each group; and the last group, which is
    // often the largest, in which there is one for all layers above.
    const size_t sets = rules_.device_choices.size();
    if (sets == rules_.turns || plan.forward_groups.empty()) return;
    for (size_t ends : {0, 1, 2, 4}) {
      for (bool fused : {false, true}) {
        if (ends == 0 && !fused) continue;
        plan::Plan spread = plan;
        for (auto* groups : {&spread.forward_groups, &spread.backward_groups}) {
          for (size_t i = 0; i < std::min(ends, groups->size()); ++i) {
            (*groups)[i].devices = rules_.device_choices.back();
          }
        }
        if (fused) spread.backward_groups.back().devices = rules_.device_choices.back();
        AddPlan(std::move(spread));
      }
    }
  }

  void AddPlan(plan::Plan plan) {
    PlaceStashes(rules_, &plan);
    plans_.push_back(std::move(plan));
  }

  const PlanBuilder& builder_;
  const model::ModelSpec& model_;
  const MoveRules& rules_;
  const int choices_;         // that groups take in turn
  std::vector<int> devices_;  // that groups are wrapped around
  std::vector<double> time_, memory_, speed_;
  RangeCosts tables_[2];
  std::set<std::vector<model::LayerRange>> added_;
  std::vector<plan::Plan> plans_;
};

}  // namespace

std::vector<plan::Plan> SeedPlans(const PlanBuilder& builder, TaskCosts& costs,
                                  const MoveRules& rules,
                                  const std::vector<model::LayerRange>& partition) {
  return Seeds(builder, costs, rules).Run(partition);
}

std::vector<plan::Plan> BestPlans(const SearchResult& found) {
  std::vector<plan::Plan> best;
  if (found.found) best.push_back(found.best.plan);
  for (const ScoredPlan& other : found.report.simulated) {
    const bool same = KeyOf(other.plan) == KeyOf(found.best.plan);
    if (best.size() < kMostHandedOn && other.fits_host && !same) best.push_back(other.plan);
  }
  return best;
}

plan::Plan WithGroupsOf(const plan::Plan& found, const plan::Plan& shape) {
  plan::Plan plan = shape;
  plan.update = found.update;
  plan.stream_slots = found.stream_slots;
  plan.microbatches_per_forward_task = found.microbatches_per_forward_task;
  plan.forward_groups = found.forward_groups;
  plan.backward_groups = found.backward_groups;
  return plan;
}

std::vector<plan::Plan> PlansLike(const plan::Plan& found, const plan::Plan& shape,
                                  const MoveRules& rules) {
  const plan::Plan plan = WithGroupsOf(found, shape);
  std::vector<plan::Plan> plans;
  const auto add = [&](size_t begin, size_t end, size_t chosen) {
    plan::Plan changed = plan;
    if (!Spread(rules, begin, end, chosen, &changed)) return;
    FitForward(&changed);
    PlaceStashes(rules, &changed);
    plans.push_back(std::move(changed));
  };
  const size_t larger = rules.device_choices.size() - rules.turns;
  std::set<int> sizes;
  for (size_t chosen = 0; chosen < rules.device_choices.size(); ++chosen) {
    const size_t set = chosen < larger ? rules.turns + chosen : chosen - larger;
    const bool other_size = sizes.insert(rules.device_choices[set].size()).second;
    if (rules.alike_devices && !other_size) continue;
    for (size_t count = 1; count <= kMostAtEnds; ++count) {
      add(0, count, chosen);
      add(count, 0, chosen);
      add(count, count, chosen);
    }
    add(plan.forward_groups.size() + plan.backward_groups.size(), 0, chosen);
  }
  return plans;
}

std::vector<plan::Plan> WithSettings(const plan::Plan& plan, const MoveRules& rules) {
  const bool deep = plan.backward_groups.back().layers.last >= kMostLayersToBalance * 2;
  std::vector<plan::Plan> plans;
  for (job::StashPlacement stash : {job::StashPlacement::kHost, job::StashPlacement::kDevice}) {
    if (rules.stash != job::StashPlacement::kAuto && stash != rules.stash) continue;
    MoveRules placed = rules;
    placed.stash = stash;
    for (int slots = 1; slots <= rules.most_slots; ++slots) {
      if (deep && slots != std::min(2, rules.most_slots)) continue;
      plans.push_back(plan);
      plans.back().stream_slots = slots;
      PlaceStashes(placed, &plans.back());
      if (!rules.update) continue;
      plans.push_back(plans.back());
      plans.back().update = job::UpdateMode::kDeferred;
    }
  }
  return plans;
}

}  // namespace harmony::planner
