// What the search finds, against looking at every plan there is.
//
//   build/tests/search_test --instances=N     more random instances than CI has time for
//   build/tests/search_test --largest=1 --instances=1 --first=N --gtest_filter=*OnSetsOfDevices
//       6 layers on any sets of 3 devices, each group on its own, stashes on the host: up to ten
//       minutes an instance

#include <cmath>
#include <functional>
#include <set>

#include "absl/algorithm/container.h"
#include "coordinator/dispatch/costs/analytic_costs.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/search/moves.h"
#include "coordinator/planner/search/placement.h"
#include "coordinator/planner/timing/bounds.h"
#include "gtest/gtest.h"
#include "tests/support/arguments.h"
#include "tests/unit/coordinator/dispatch/small_case.h"

namespace harmony::planner {
namespace {

#if defined(__SANITIZE_ADDRESS__)
uint64_t instances = 3;
#else
uint64_t instances = 9;
#endif
uint64_t first = 1;
uint64_t largest = 0;

struct Instance {
  Division division;
  model::ModelSpec model;
  job::JobSpec job;
  plan::MachineSpec machine;
  bool free_placement = true;  // of every group; else wrap-around from each device
};

double Between(CounterRandom& random, double least, double most) {
  return least + random.NextDouble() * (most - least);
}

// The fixed workspace, and room for all layers or for two.
Bytes RandomMemory(CounterRandom& random) {
  return MiB(4) + KiB(8) * static_cast<int64_t>(2 + random.Below(10));
}

// Alike, of unequal memory, or unequal altogether; with links and a host of their own or shared.
std::vector<plan::DeviceSpec> RandomDevices(CounterRandom& random, int count) {
  const uint64_t unequal = random.Below(3);
  const bool one_root = random.Below(4) == 0, context = random.Below(4) == 0;
  // From much slower than the links to much quicker.
  const double host = random.Below(2) == 0 ? 0 : 2e7 * std::exp(Between(random, 0, std::log(50.0)));
  std::vector<plan::DeviceSpec> devices;
  for (int d = 0; d < count; ++d) {
    plan::DeviceSpec device;
    if (d > 0 && unequal < 2) {
      device = devices.front();
      if (unequal == 1) device.memory = RandomMemory(random) + device.context;
    } else {
      device.context = context ? KiB(static_cast<int64_t>(random.Below(100))) : Bytes(0);
      device.memory = RandomMemory(random) + device.context;
      device.flops = {Between(random, 4e7, 32e7)};
      device.h2d = {Between(random, 1e7, 8e7)};
      device.d2h = {Between(random, 1e7, 8e7)};
      device.p2p = {Between(random, 1e7, 8e7)};
      device.host = {host};
    }
    device.ordinal = d;
    if (one_root && d < 2) device.root = std::string("a");
    devices.push_back(device);
  }
  return devices;
}

// Layers, devices and microbatches so that all plans can be looked at in a moment.
Instance RandomInstance(uint64_t seed, DeviceSets sets) {
  static constexpr int kSizes[][3] = {// layers, devices, free placement
                                      {3, 2, 1}, {4, 2, 1}, {8, 1, 1}, {6, 2, 0},
                                      {7, 3, 0}, {4, 3, 1}, {5, 2, 1}, {8, 3, 0},
                                      {3, 3, 1}, {6, 2, 1}, {5, 3, 0}, {7, 1, 1}};
  CounterRandom random(seed, 13);
  // On any sets of devices there are more plans of as many layers.
  static constexpr int kSizesOfSets[][3] = {{3, 2, 1}, {4, 2, 1}, {3, 3, 1},
                                            {6, 3, 0}, {4, 3, 0}, {6, 2, 0}};
  static constexpr int kLargest[3] = {6, 3, 1};
  const auto& size = sets != DeviceSets::kAny ? kSizes[seed % std::size(kSizes)]
                     : largest != 0           ? kLargest
                                              : kSizesOfSets[seed % std::size(kSizesOfSets)];
  Instance instance;
  instance.model = dispatch::SmallModel(size[0] - 2, random.Below(2) == 0);
  instance.free_placement = size[2] == 1;
  job::JobSpec& job = instance.job;
  job.mode = sets == DeviceSets::kAny   ? "auto"
             : sets == DeviceSets::kAll ? "harmony-dp"
                                        : "harmony-pp";
  job.sequence_length = 16;
  job.max_steps = 20'000;  // a run of half a minute, which is worth a whole search
  job.global_batch_size = 1 + static_cast<int64_t>(random.Below(4));
  if (sets != DeviceSets::kSingle) {
    job.global_batch_size = random.Below(2) == 0 ? 2 : 4;
    instance.division = {sets, random.Below(2) == 0 ? 2 : static_cast<int>(job.global_batch_size)};
  }
  job.virtual_replicas = instance.division.replicas;
  // 0: forward tasks may have another size than backward tasks.
  job.micro_batch_size = static_cast<int64_t>(random.Below(2));
  static constexpr job::UpdateMode kUpdates[] = {
      job::UpdateMode::kEager, job::UpdateMode::kDeferred, job::UpdateMode::kAuto};
  job.update = kUpdates[random.Below(size[0] <= 4 ? 3 : 2)];
  if (job.update != job::UpdateMode::kEager && random.Below(4) == 0) job.max_grad_norm = 1;
  if (random.Below(4) == 0) job.optim = job::OptimizerKind::kSgd;
  // Few layers: stashes and activations of each group here or there.
  const bool few = size[0] <= 4 || (size[0] == 5 && size[1] == 2);
  static constexpr job::StashPlacement kStashes[] = {
      job::StashPlacement::kHost, job::StashPlacement::kDevice, job::StashPlacement::kAuto,
      job::StashPlacement::kAuto};
  job.stash = kStashes[few ? random.Below(4) : random.Below(8) / 7];
  if (sets == DeviceSets::kAny && job.stash == job::StashPlacement::kDevice) {
    job.stash = job::StashPlacement::kHost;  // with the other there are no sets
  }
  instance.machine.devices = RandomDevices(random, size[1]);
  return instance;
}

// Every cut of layers [0, end) into groups.
void ForEachPartition(int end,
                      const std::function<void(const std::vector<model::LayerRange>&)>& take) {
  for (uint32_t cuts = 0; cuts < (1U << std::max(end - 1, 0)); ++cuts) {
    std::vector<model::LayerRange> partition;
    if (end > 0) partition.push_back({0, end - 1});
    for (int layer = 1; layer < end; ++layer) {
      if ((cuts >> (layer - 1) & 1) == 0) continue;
      partition.back().last = layer - 1;
      partition.push_back({layer, end - 1});
    }
    take(partition);
  }
}

class BruteForce {
 public:
  BruteForce(const Instance& instance, const PlanBuilder& builder)
      : instance_(instance),
        builder_(builder),
        shape_(builder.Blank()),
        choices_(builder.DeviceChoices()),
        alike_(Alike(instance.machine.devices)),
        tasks_(instance.model, shape_,
               std::make_unique<dispatch::AnalyticCosts>(instance.model, shape_,
                                                         instance.machine.devices)),
        bounds_(instance.model, tasks_) {}

  // Simulates what the bounds do not rule out; the best score below `best`.
  Nanos Run(Nanos best) {
    best_ = best;
    const Loads idle(instance_.machine.devices.size());
    ForEachPartition(instance_.model.num_layers(), [&](const Partition& backward) {
      ForEachPartition(backward.back().first, [&](const Partition& forward) {
        plan::Plan plan = shape_;
        ForEachPlacement(backward, BackwardFactor(), idle, &plan.backward_groups,
                         [&](const Loads& loads) {
                           ForEachPlacement(forward, 1, loads, &plan.forward_groups,
                                            [&](const Loads& whole) { Whole(plan, whole); });
                         });
      });
    });
    return best_;
  }
  int64_t looked_at() const { return looked_at_; }
  int64_t simulated() const { return simulated_; }
  const plan::Plan& plan() const { return plan_; }

 private:
  using Partition = std::vector<model::LayerRange>;
  using Loads = std::vector<double>;  // seconds of work, by device

  // Every placement of the partition's groups with which no device has as much work as the best
  // plan takes.
  void ForEachPlacement(const Partition& partition, double factor, const Loads& loads,
                        std::vector<plan::LayerGroup>* groups,
                        const std::function<void(const Loads&)>& take) {
    const size_t g = groups->size();
    if (g == partition.size()) return take(loads);
    for (size_t c = 0; c < choices_.size(); ++c) {
      const bool wrapped = g == 0 || choices_[c] == AfterThat(groups->back().devices);
      if (!instance_.free_placement && !wrapped) continue;
      const plan::DeviceSet& devices = choices_[c];
      Loads with = loads;
      for (int d : devices) with[d] += factor * WorkOf(partition[g], d) / devices.size();
      if (*absl::c_max_element(with) >= best_.seconds()) continue;
      groups->push_back({partition[g], devices});
      ForEachPlacement(partition, factor, with, groups, take);
      groups->pop_back();
    }
  }
  const plan::DeviceSet& AfterThat(const plan::DeviceSet& devices) const {
    const auto at = absl::c_find(choices_, devices) - choices_.begin();
    return choices_[static_cast<size_t>(at + 1) % choices_.size()];
  }
  // Forward of a whole step; what AnalyticCosts counts, without what each task takes.
  double WorkOf(const model::LayerRange& layers, int device) const {
    double flops = 0;
    for (int layer = layers.first; layer <= layers.last; ++layer) {
      flops += model::ForwardFlops(instance_.model, layer, shape_.microbatch_size);
    }
    return flops * shape_.num_microbatches / instance_.machine.devices[device].flops.value;
  }
  // Who keeps activations recomputes nothing.
  double BackwardFactor() const {
    return instance_.job.stash == job::StashPlacement::kHost ? 3 : 2;
  }

  void Whole(const plan::Plan& plan, const Loads& loads) {
    if (alike_ && Renamed(plan, choices_)) return;
    least_ = *absl::c_max_element(loads);
    Settings(plan);
  }

  static bool Alike(const std::vector<plan::DeviceSpec>& devices) {
    return absl::c_all_of(devices, [&](plan::DeviceSpec device) {
      device.ordinal = 0;
      return ToString(device) == ToString(devices.front());
    });
  }

  // The same plan with other names of the devices is looked at as well.
  static bool Renamed(const plan::Plan& plan, const std::vector<plan::DeviceSet>& choices) {
    plan::Plan first = plan;
    RenameDevices(&first);
    for (const auto* groups : {&first.forward_groups, &first.backward_groups}) {
      for (const plan::LayerGroup& group : *groups) {
        if (!absl::c_linear_search(choices, group.devices)) return false;
      }
    }
    return KeyOf(first) != KeyOf(plan);
  }

  void Settings(plan::Plan plan) {
    const bool open =
        instance_.job.update == job::UpdateMode::kAuto && instance_.job.max_grad_norm == 0;
    Weights(plan);
    if (!open) return;
    plan.update = job::UpdateMode::kDeferred;
    Weights(plan);
  }

  void Weights(plan::Plan plan) {
    std::vector<size_t> keepers;
    for (size_t g = 0; g < plan.backward_groups.size(); ++g) {
      if (plan::CanKeepWeights(plan, plan.backward_groups[g])) keepers.push_back(g);
    }
    for (uint32_t keep = 0; keep < (1U << keepers.size()); ++keep) {
      for (size_t i = 0; i < keepers.size(); ++i) {
        plan.backward_groups[keepers[i]].keep_weights = (keep >> i & 1) != 0;
      }
      Stashes(plan);
    }
  }

  void Stashes(plan::Plan plan) {
    const job::StashPlacement where = instance_.job.stash;
    const uint32_t end =
        where == job::StashPlacement::kHost ? 1 : 1U << plan.backward_groups.size();
    for (uint32_t keep = where == job::StashPlacement::kDevice ? end - 1 : 0; keep < end; ++keep) {
      for (size_t g = 0; g < plan.backward_groups.size(); ++g) {
        plan.backward_groups[g].keep_stash = (keep >> g & 1) != 0;
      }
      const auto can = [&plan](const plan::LayerGroup& group) {
        return !group.keep_stash || plan::CanKeepStash(plan, group);
      };
      if (absl::c_all_of(plan.backward_groups, can)) Activations(plan);
    }
  }

  void Activations(plan::Plan plan) {
    std::vector<size_t> keepers;
    for (size_t g = 0; g < plan.backward_groups.size(); ++g) {
      const plan::LayerGroup& group = plan.backward_groups[g];
      if (group.keep_stash && plan::CanKeepActivations(plan, group)) keepers.push_back(g);
    }
    for (uint32_t keep = 0; keep < (1U << keepers.size()); ++keep) {
      for (size_t i = 0; i < keepers.size(); ++i) {
        plan.backward_groups[keepers[i]].keep_activations = (keep >> i & 1) != 0;
      }
      const int each = plan.num_microbatches / choices_.back().size();
      for (int task_microbatches = 1; task_microbatches <= each; ++task_microbatches) {
        if (each % task_microbatches != 0) continue;
        if (task_microbatches > 1 && (keep != 0 || instance_.job.micro_batch_size > 0)) continue;
        plan.microbatches_per_forward_task = task_microbatches;
        for (int slots = 1; slots <= 3; ++slots) {
          plan.stream_slots = slots;
          Judge(plan);
        }
      }
    }
  }

  void Judge(plan::Plan plan) {
    ++looked_at_;
    StepExecutions step;
    if (!builder_.Complete(&plan, &step)) return;
    const PlanBound bound = bounds_.OfPlan(plan, step);
    EXPECT_LE(least_, bound.lane.seconds()) << DebugString(plan);  // or too much was left out
    if (builder_.Score(plan, bound.step) >= best_) return;
    ++simulated_;
    const absl::StatusOr<Estimate> estimate = EvaluatePlan(instance_.model, plan, tasks_.model());
    if (!estimate.ok()) return;
    const Nanos score = builder_.Score(plan, estimate->step);
    if (score >= best_) return;
    best_ = score;
    plan_ = plan;
  }

  const Instance& instance_;
  const PlanBuilder& builder_;
  const plan::Plan shape_;
  const std::vector<plan::DeviceSet> choices_;
  const bool alike_;
  TaskCosts tasks_;
  Bounds bounds_;
  Nanos best_;
  double least_ = 0;  // seconds of work of the busiest device of the plan that is looked at
  plan::Plan plan_;
  int64_t looked_at_ = 0, simulated_ = 0;
};

std::string Seed(uint64_t seed) { return testing_support::Replay("search_test", seed); }

void CompareWithBruteForce(DeviceSets sets) {
  int feasible = 0;
  for (uint64_t seed = first; seed < first + instances; ++seed) {
    const Instance instance = RandomInstance(seed, sets);
    const PlanBuilder builder(instance.model, instance.job, instance.machine, 1, instance.division);
    PlannerOptions options;
    options.microbatch_size = 1;
    const absl::StatusOr<PlanResult> found =
        MakePlan(instance.model, instance.job, instance.machine, options);
    BruteForce brute(instance, builder);
    if (!found.ok()) {
      brute.Run(Seconds(1000));
      EXPECT_EQ(brute.simulated(), 0) << Seed(seed) << ": " << DebugString(brute.plan());
      continue;
    }
    ++feasible;
    const Nanos scored = builder.Score(found->plan, found->estimate.step);
    // As far as plans that are equally fast are told apart.
    const Nanos limit(
        static_cast<int64_t>(static_cast<double>(scored.count()) / (1 + kEquallyFast)));
    const Nanos best = brute.Run(limit);
    EXPECT_EQ(best, limit) << Seed(seed) << ": " << scored.seconds() << " s by the search, "
                           << best.seconds() << " s by brute force:\n"
                           << DebugString(found->plan) << "\n"
                           << DebugString(brute.plan());
    std::printf(
        "%s, seed %2llu: %zu layers, %zu devices: %lld plans, %lld simulated; the search: %lld "
        "bounded, %lld simulated, forward tasks of %d%s\n",
        plan::ModeOf(found->plan), static_cast<unsigned long long>(seed),
        instance.model.layers.size(), instance.machine.devices.size(),
        static_cast<long long>(brute.looked_at()), static_cast<long long>(brute.simulated()),
        static_cast<long long>(found->report.bounded),
        static_cast<long long>(found->report.simulations),
        found->plan.microbatches_per_forward_task, found->report.exhaustive ? ", proved" : "");
  }
  EXPECT_GE(feasible * 4, static_cast<int>(instances) * 3);
}

// Ways that differ in length and in number, as those of a plan's changes do.
TEST(EachWayTest, GoesEachWayOnce) {
  std::vector<std::vector<int>> ways;
  ForEachWay([&](Chooser& way) {
    std::vector<int>& went = ways.emplace_back();
    went.push_back(way.Below(3));
    if (went.back() == 1) return;
    went.push_back(way.Weighted({5, 1}));
    if (way.Below(1) == 0 && went.front() == 2) went.push_back(way.Either() ? 0 : 1);
  });
  EXPECT_EQ(ways, (std::vector<std::vector<int>>{
                      {0, 0}, {0, 1}, {1}, {2, 0, 0}, {2, 0, 1}, {2, 1, 0}, {2, 1, 1}}));
}

// All small changes, and nothing that is not a whole plan.
TEST(MoveTest, EachWayInTurnAreAllThatChanceMakes) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    RandomChooser by_chance(seed, 17);
    plan::Plan plan = dispatch::SmallPlan(dispatch::SmallModel(4), 3);
    MoveRules rules;
    rules.forward_task_sizes = {1, 2};
    plan.replicas = 2;
    std::vector<plan::DeviceSet> choices = {0, 1, 2};
    if (seed % 2 == 0) choices.push_back({0, 1});
    SetDeviceChoices(std::move(choices), &rules);
    for (int i = 0; i < 20; ++i) Move(rules, by_chance, &plan);
    std::set<std::string> neighbours;
    ForEachWay([&](Chooser& way) {
      plan::Plan neighbour = plan;
      Move(rules, way, &neighbour);
      EXPECT_EQ(neighbour.backward_groups.back().layers.last, 5);
      EXPECT_EQ(neighbour.forward_groups.empty() ? -1 : neighbour.forward_groups.back().layers.last,
                neighbour.backward_groups.back().layers.first - 1);
      neighbours.insert(KeyOf(neighbour));
    });
    for (int i = 0; i < 50; ++i) {
      plan::Plan changed = plan;
      Move(rules, by_chance, &changed);
      EXPECT_TRUE(neighbours.contains(KeyOf(changed))) << "seed " << seed << ":\n"
                                                       << DebugString(plan) << "\n"
                                                       << DebugString(changed);
    }
  }
}

TEST(SearchTest, BruteForceFindsNothingBetter) { CompareWithBruteForce(DeviceSets::kSingle); }

TEST(SearchTest, BruteForceFindsNothingBetterInDataMode) {
  CompareWithBruteForce(DeviceSets::kAll);
}

TEST(SearchTest, BruteForceFindsNothingBetterOnSetsOfDevices) {
  CompareWithBruteForce(DeviceSets::kAny);
}

}  // namespace
}  // namespace harmony::planner

int main(int argc, char** argv) {
  return harmony::testing_support::RunAllTests(
      argc, argv,
      {{.name = "instances", .number = &harmony::planner::instances},
       {.name = "first", .number = &harmony::planner::first},
       {.name = "largest", .number = &harmony::planner::largest}});
}
