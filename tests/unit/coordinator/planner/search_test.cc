// What the search finds, against looking at every plan there is.
//
//   build/tests/search_test --instances=N     more random instances than CI has time for

#include "coordinator/planner/search.h"

#include <functional>

#include "coordinator/core/analytic_costs.h"
#include "coordinator/planner/bounds.h"
#include "gtest/gtest.h"
#include "tests/support/arguments.h"
#include "tests/unit/coordinator/core/small_case.h"

namespace harmony {
namespace {

#if defined(__SANITIZE_ADDRESS__)
uint64_t instances = 4;
#else
uint64_t instances = 12;
#endif
uint64_t first = 1;

struct Instance {
  Division division;
  ModelSpec model;
  JobSpec job;
  MachineSpec machine;
  bool free_placement = true;  // of every group; else wrap-around from each device
};

// Layers, devices and microbatches so that all plans can be looked at in a moment.
Instance RandomInstance(uint64_t seed, ParallelMode mode) {
  static constexpr int kSizes[][3] = {// layers, devices, free placement
                                      {3, 2, 1}, {4, 2, 1}, {8, 1, 1}, {6, 2, 0},
                                      {7, 3, 0}, {4, 3, 1}, {5, 2, 1}, {8, 3, 0},
                                      {3, 3, 1}, {6, 2, 1}, {5, 3, 0}, {7, 1, 1}};
  CounterRandom random(seed, 11);
  const auto& size = kSizes[seed % std::size(kSizes)];
  Instance instance;
  instance.model = SmallModel(size[0] - 2, random.Below(2) == 0);
  instance.free_placement = size[2] == 1;
  JobSpec& job = instance.job;
  job.sequence_length = 16;
  job.global_batch_size = 1 + static_cast<int64_t>(random.Below(4));
  if (mode == ParallelMode::kData) {
    job.global_batch_size = random.Below(2) == 0 ? 2 : 4;
    instance.division = {mode, random.Below(2) == 0 ? 2 : static_cast<int>(job.global_batch_size)};
  }
  job.micro_batch_size = seed % 2;  // 0: forward tasks may have another size than backward tasks
  job.update = random.Below(2) == 0 ? UpdateMode::kEager : UpdateMode::kDeferred;
  // Few layers: stashes and activations of each group here or there; else on the host.
  job.stash = size[0] <= 4 || (size[0] == 5 && size[1] == 2) ? StashPlacement::kAuto
                                                             : StashPlacement::kHost;
  const bool alike = random.Below(2) == 0;
  for (int d = 0; d < size[1]; ++d) {
    DeviceSpec device;
    if (alike && d > 0) {
      device = instance.machine.devices[0];
    } else {
      const auto rate = [&](double least) { return least * (1 + random.NextDouble() * 7); };
      // The fixed workspace, and room for all layers or for two.
      device.memory = MiB(4) + KiB(8) * static_cast<int64_t>(2 + random.Below(10));
      device.flops = {rate(4e7)};
      device.h2d = {rate(1e7)};
      device.d2h = {rate(1e7)};
      device.p2p = {rate(1e7)};
    }
    device.ordinal = d;
    instance.machine.devices.push_back(device);
  }
  return instance;
}

// Every cut of layers [0, end) into groups.
void ForEachPartition(int end, const std::function<void(const std::vector<LayerRange>&)>& visit) {
  for (uint32_t cuts = 0; cuts < (1U << std::max(end - 1, 0)); ++cuts) {
    std::vector<LayerRange> partition;
    if (end > 0) partition.push_back({0, end - 1});
    for (int layer = 1; layer < end; ++layer) {
      if ((cuts >> (layer - 1) & 1) == 0) continue;
      partition.back().last = layer - 1;
      partition.push_back({layer, end - 1});
    }
    visit(partition);
  }
}

// Every placement of the partition's groups.
void ForEachPlacement(const Instance& instance, const std::vector<LayerRange>& partition,
                      const std::function<void(const std::vector<LayerGroup>&)>& visit) {
  const bool data = instance.division.mode == ParallelMode::kData;
  const int devices = data ? 1 : static_cast<int>(instance.machine.devices.size());
  int64_t count = devices;
  for (size_t i = 1; instance.free_placement && i < partition.size(); ++i) count *= devices;
  if (partition.empty()) count = 1;
  for (int64_t code = 0; code < count; ++code) {
    std::vector<LayerGroup> groups;
    int64_t digits = code;
    for (size_t g = 0; g < partition.size(); ++g) {
      const int64_t device =
          instance.free_placement ? digits % devices : (code + static_cast<int64_t>(g)) % devices;
      digits /= devices;
      groups.push_back({partition[g], static_cast<int>(device)});
    }
    visit(groups);
  }
}

class BruteForce {
 public:
  BruteForce(const Instance& instance, const PlanBuilder& builder)
      : instance_(instance),
        builder_(builder),
        shape_(builder.Blank()),
        tasks_(instance.model, shape_,
               std::make_unique<AnalyticCosts>(instance.model, shape_, instance.machine.devices)),
        bounds_(instance.model, tasks_) {}

  // Simulates what the bounds do not rule out; the best score below `best`.
  Nanos Run(Nanos best) {
    best_ = best;
    ForEachPartition(instance_.model.num_layers(), [&](const auto& backward) {
      ForEachPartition(backward.back().first, [&](const auto& forward) {
        ForEachPlacement(instance_, backward, [&](const auto& backward_groups) {
          ForEachPlacement(instance_, forward, [&](const auto& forward_groups) {
            Plan plan = shape_;
            plan.backward_groups = backward_groups;
            plan.forward_groups = forward_groups;
            Settings(plan);
          });
        });
      });
    });
    return best_;
  }
  int64_t looked_at() const { return looked_at_; }
  int64_t simulated() const { return simulated_; }
  const Plan& plan() const { return plan_; }

 private:
  void Settings(Plan plan) {
    std::vector<size_t> keepers;
    for (size_t g = 0; g < plan.backward_groups.size(); ++g) {
      if (CanKeepWeights(plan, plan.backward_groups[g])) keepers.push_back(g);
    }
    for (uint32_t keep = 0; keep < (1U << keepers.size()); ++keep) {
      for (size_t i = 0; i < keepers.size(); ++i) {
        plan.backward_groups[keepers[i]].keep_weights = (keep >> i & 1) != 0;
      }
      Stashes(plan);
    }
  }

  void Stashes(Plan plan) {
    const bool host = instance_.job.stash == StashPlacement::kHost;
    const uint32_t all = host ? 1 : 1U << plan.backward_groups.size();
    for (uint32_t keep = 0; keep < all; ++keep) {
      for (size_t g = 0; g < plan.backward_groups.size(); ++g) {
        plan.backward_groups[g].keep_stash = (keep >> g & 1) != 0;
      }
      Activations(plan);
    }
  }

  void Activations(Plan plan) {
    std::vector<size_t> keepers;
    for (size_t g = 0; g < plan.backward_groups.size(); ++g) {
      const LayerGroup& group = plan.backward_groups[g];
      if (group.keep_stash && CanKeepActivations(plan, group)) keepers.push_back(g);
    }
    for (uint32_t keep = 0; keep < (1U << keepers.size()); ++keep) {
      for (size_t i = 0; i < keepers.size(); ++i) {
        plan.backward_groups[keepers[i]].keep_activations = (keep >> i & 1) != 0;
      }
      for (int span = 1; span <= plan.replica_microbatches(); ++span) {
        if (plan.replica_microbatches() % span != 0) continue;
        if (span > 1 && (keep != 0 || instance_.job.micro_batch_size > 0)) continue;
        plan.forward_span = span;
        for (int slots = 1; slots <= 3; ++slots) {
          plan.stream_slots = slots;
          Judge(plan);
        }
      }
    }
  }

  void Judge(Plan plan) {
    ++looked_at_;
    StepVisits step;
    if (!builder_.Complete(&plan, &step)) return;
    if (builder_.Score(plan, bounds_.OfPlan(plan, step).step) >= best_) return;
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
  const Plan shape_;
  TaskCosts tasks_;
  Bounds bounds_;
  Nanos best_;
  Plan plan_;
  int64_t looked_at_ = 0, simulated_ = 0;
};

void CompareWithBruteForce(ParallelMode mode) {
  int feasible = 0;
  for (uint64_t seed = first; seed < first + instances; ++seed) {
    const Instance instance = RandomInstance(seed, mode);
    const PlanBuilder builder(instance.model, instance.job, instance.machine, 1, instance.division);
    MoveRules rules;
    rules.update = false;
    rules.stash = instance.job.stash;
    rules.spans = builder.ForwardSpans();
    const SearchResult found = SearchPlans(
        builder, rules, {}, AnalyticCostFactory(instance.model, instance.machine.devices), {});
    BruteForce brute(instance, builder);
    if (!found.found) {
      brute.Run(Seconds(1000));
      EXPECT_EQ(brute.simulated(), 0) << "seed " << seed << ": " << DebugString(brute.plan());
      continue;
    }
    ++feasible;
    const double score = static_cast<double>(found.best.score.count());
    // As far as plans that are equally fast are told apart.
    const Nanos limit(static_cast<int64_t>(score / (1 + kEquallyFast)));
    const Nanos best = brute.Run(limit);
    EXPECT_EQ(best, limit) << "seed " << seed << ": " << score * 1e-9 << " s by the search, "
                           << best.seconds() << " s by brute force:\n"
                           << DebugString(found.best.plan) << "\n"
                           << DebugString(brute.plan());
    std::printf(
        "%s, seed %2llu: %zu layers, %zu devices: %lld plans, %lld simulated; the search: %lld "
        "bounded, %lld simulated, forward tasks of %d%s\n",
        ToString(mode), static_cast<unsigned long long>(seed), instance.model.layers.size(),
        instance.machine.devices.size(), static_cast<long long>(brute.looked_at()),
        static_cast<long long>(brute.simulated()), static_cast<long long>(found.report.bounded),
        static_cast<long long>(found.report.simulations), found.best.plan.forward_span,
        found.report.exhaustive ? ", proved" : "");
  }
  EXPECT_GE(feasible * 4, static_cast<int>(instances) * 3);
}

TEST(SearchTest, BruteForceFindsNothingBetter) { CompareWithBruteForce(ParallelMode::kPipeline); }

TEST(SearchTest, BruteForceFindsNothingBetterInDataMode) {
  CompareWithBruteForce(ParallelMode::kData);
}

}  // namespace
}  // namespace harmony

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const bool known =
      harmony::testing::ReadArguments(argc, argv,
                                      {{.name = "instances", .number = &harmony::instances},
                                       {.name = "first", .number = &harmony::first}});
  return known ? RUN_ALL_TESTS() : 2;
}
