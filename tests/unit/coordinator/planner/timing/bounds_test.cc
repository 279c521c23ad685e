// Bounds and the evaluation, held against simulations of random plans.
//
//   build/tests/bounds_test --instances=N --first=SEED     more random plans than CI has time for

#include "coordinator/planner/timing/bounds.h"

#include <cmath>

#include "common/model/families/causal_lm.h"
#include "coordinator/planner/fit/device_need.h"
#include "coordinator/planner/fit/plan_builder.h"
#include "coordinator/planner/timing/evaluation.h"
#include "gtest/gtest.h"
#include "tests/sim/random_case.h"
#include "tests/support/arguments.h"
#include "tests/support/sanitized.h"
#include "tests/unit/coordinator/dispatch/small_case.h"
#include "tests/unit/coordinator/planner/gpt2_case.h"
#include "tests/unit/coordinator/planner/timing/random_costs.h"

namespace harmony::planner {
namespace {

uint64_t instances = 0;  // 0: as many as each test says
uint64_t first = 1;

uint64_t Instances(uint64_t usual) { return instances > 0 ? instances : usual; }

std::vector<int> AllForwardTaskSizes(const plan::Plan& plan) {
  std::vector<int> forward_task_sizes;
  int entries = 1;
  for (const auto* groups : {&plan.forward_groups, &plan.backward_groups}) {
    for (const plan::LayerGroup& group : *groups) entries = std::max(entries, group.devices.size());
  }
  const int each = plan.num_microbatches / entries;
  for (int task_microbatches = 1; task_microbatches <= each; ++task_microbatches) {
    if (each % task_microbatches == 0) forward_task_sizes.push_back(task_microbatches);
  }
  return forward_task_sizes;
}

// Of a plan's devices: random plans are made of what is resident alone.
void AddWorkspace(const model::ModelSpec& model, plan::Plan* plan) {
  const std::vector<DeviceNeed> needs = NeedOfDevices(*plan, NeedOfGroups(model, *plan));
  for (size_t d = 0; d < needs.size(); ++d) {
    plan->devices[d].memory += needs[d].workspace.workspace;
  }
}

std::string Seed(uint64_t seed) { return testing_support::Replay("bounds_test", seed); }

TEST(BoundsTest, NoSimulatedStepIsShorter) {
  double tightness = 0, any_tightness = 0;
  int data = 0, mixed = 0;
  const uint64_t cases = Instances(1500);
  for (uint64_t seed = first; seed < first + cases; ++seed) {
    const sim::RandomCase c = sim::MakeRandomCase(seed);
    auto costs = RandomCosts(c, seed);
    const absl::StatusOr<Estimate> estimate = EvaluatePlan(c.model, c.plan, *costs);
    ASSERT_TRUE(estimate.ok()) << Seed(seed) << ": " << estimate.status();
    TaskCosts tasks(c.model, c.plan, std::move(costs));
    Bounds bounds(c.model, tasks);
    const StepExecutions step = ExecutionsOf(c.model, c.plan);
    const PlanBound bound = bounds.OfPlan(c.plan, step);
    ASSERT_LE(bound.step, estimate->step)
        << Seed(seed) << " chain " << bound.chain.count() << " lane " << bound.lane.count() << "\n"
        << DebugString(c.plan);
    plan::Plan shape = c.plan;
    AddWorkspace(c.model, &shape);
    const DeviceSets sets = SetsOf(c.plan);
    const Nanos any = bounds.OfAnyPlan(shape, sets, AllForwardTaskSizes(c.plan));
    ASSERT_LE(any, estimate->step) << Seed(seed) << "\n" << DebugString(c.plan);
    data += sets == DeviceSets::kAll ? 1 : 0;
    mixed += sets == DeviceSets::kAny ? 1 : 0;
    tightness += bound.step.seconds() / estimate->step.seconds();
    any_tightness += any.seconds() / estimate->step.seconds();
  }
  const auto count = static_cast<double>(cases);
  std::printf("bound / simulated: %.3f of a plan, %.3f of any plan\n", tightness / count,
              any_tightness / count);
  EXPECT_GT(tightness / count, 0.9);  // or the search would simulate too much
  // Of all kinds.
  EXPECT_GT(static_cast<double>(data), count / 20);
  EXPECT_GT(static_cast<double>(mixed), count / 10);
}

// Of two devices one gives its gradients to the other, over which link ever: its own way to the
// host may be as slow as it likes.
TEST(BoundsTest, OfAnyPlanKnowsThatGradientsAreAddedUpAmongDevices) {
  const model::ModelSpec model = dispatch::SmallModel();
  for (int root : {0, 1, 2}) {
    plan::Plan plan = dispatch::SmallPlan(model, 2);
    plan.replicas = 2;
    plan.forward_groups.clear();
    plan.backward_groups = {{{0, 2}, {0, 1}}};  // in one part
    plan.devices[0].root = root;
    plan.devices[1].root = root == 0 ? 0 : 1;
    plan.gradient_ring = plan::ArenaLayout::DefaultRing(model, plan);
    plan.arena_dynamic = plan::ArenaLayout(model, plan).dynamic_bytes();
    std::vector<plan::DeviceSpec> devices(2);
    for (plan::DeviceSpec& device : devices) device.flops = {1e12};
    devices[0].d2h = {1e3};
    const auto costs = [&] {
      return std::make_unique<dispatch::AnalyticCosts>(model, plan, devices);
    };
    const absl::StatusOr<Estimate> estimate = EvaluatePlan(model, plan, *costs());
    ASSERT_TRUE(estimate.ok()) << estimate.status();
    TaskCosts tasks(model, plan, costs());
    const Nanos any = Bounds(model, tasks).OfAnyPlan(plan, DeviceSets::kAll, {1});
    EXPECT_GT(tasks.GradientOut(0, 0), estimate->step);
    EXPECT_LE(any, estimate->step) << "root " << root;
    EXPECT_GT(any, Nanos()) << "root " << root;
  }
}

// A forward task takes the same time whatever it runs, so all microbatches at once are best.
TEST(BoundsTest, OfAnyPlanKnowsOfForwardTasksOfManyMicrobatches) {
  class ByLayer : public dispatch::CostModel {
   public:
    Nanos Duration(const command::Command& command) const override {
      const auto* task = std::get_if<command::ComputeTask>(&command.body);
      if (task == nullptr) return Nanos(1);
      return Nanos(1000) *
             (task->layers.count() * (task->kind == command::TaskKind::kForward ? 2 : 1));
    }
  };
  const model::ModelSpec model = dispatch::SmallModel(6);
  plan::Plan plan = dispatch::SmallPlan(model, 1);
  plan.num_microbatches = plan.microbatches_per_forward_task = 4;
  plan.gradient_ring = plan::ArenaLayout::DefaultRing(model, plan);
  plan.arena_dynamic = plan::ArenaLayout(model, plan).dynamic_bytes();
  const absl::StatusOr<Estimate> estimate = EvaluatePlan(model, plan, ByLayer());
  ASSERT_TRUE(estimate.ok()) << estimate.status();
  TaskCosts tasks(model, plan, std::make_unique<ByLayer>());
  const Nanos any =
      Bounds(model, tasks).OfAnyPlan(plan, DeviceSets::kSingle, AllForwardTaskSizes(plan));
  EXPECT_LE(any, estimate->step);
  EXPECT_GT(any.seconds(), 0.8 * estimate->step.seconds());
}

// What the planner finds is near the bound where devices just have room for the activations.
TEST(BoundsTest, OfAnyPlanKnowsOfActivationsThatAreKept) {
  const model::ModelSpec model = model::BuildModelSpec(
      *model::ParseModelConfig(*model::PresetConfigJson("gpt2-mini"), "gpt2-mini"), 64);
  job::JobSpec job;
  job.sequence_length = 64;
  job.global_batch_size = 16;
  job.micro_batch_size = 1;
  job.virtual_replicas = 1;  // one gradient buffer
  const plan::MachineSpec machine =
      Machine("sim*2:mem=100MiB,flops=1G,h2d=10GB/s,d2h=10GB/s,p2p=10GB/s,host=50GB/s");
  const absl::StatusOr<PlanResult> planned = PlanQuickly(model, job, machine);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_LE(planned->report.lower_bound, planned->estimate.step);
  EXPECT_GT(planned->report.lower_bound.seconds(), 0.95 * planned->estimate.step.seconds());
}

// So are bounds that look at the first microbatches only.
TEST(BoundsTest, NoSimulatedStepIsShorterThanTheBoundOfASample) {
  constexpr int kSample = 4;
  double tightness = 0;
  int count = 0;
  for (uint64_t seed = first; seed < first + Instances(3000); ++seed) {
    sim::RandomCase c = sim::MakeRandomCase(seed);
    if (!AlikeMicrobatches(c.plan)) continue;
    if (c.plan.microbatches_per_forward_task > 1 || c.plan.num_microbatches <= kSample) continue;
    auto costs = RandomCosts(c, seed);
    const absl::StatusOr<Estimate> estimate = EvaluatePlan(c.model, c.plan, *costs);
    ASSERT_TRUE(estimate.ok()) << Seed(seed) << ": " << estimate.status();
    TaskCosts tasks(c.model, c.plan, std::move(costs));
    Bounds bounds(c.model, tasks);
    const StepExecutions step = ExecutionsOf(c.model, c.plan);
    const PlanBound all = bounds.OfPlan(c.plan, step), bound = bounds.OfPlan(c.plan, step, kSample);
    ASSERT_LE(bound.step, estimate->step) << Seed(seed) << "\n" << DebugString(c.plan);
    EXPECT_EQ(bound.lane, all.lane) << Seed(seed);
    EXPECT_EQ(bound.copies, all.copies) << Seed(seed);
    ++count;
    tightness += bound.step.seconds() / estimate->step.seconds();
  }
  std::printf("bound of a sample / simulated: %.3f\n", tightness / count);
  EXPECT_GT(count, 100);
  EXPECT_GT(tightness / count, 0.8);
}

// So slow that what messages take does not count.
class Slower : public dispatch::CostModel {
 public:
  Slower(const dispatch::CostModel& costs, plan::CoreSharing cores)
      : costs_(costs), cores_(std::move(cores)) {}
  plan::CoreSharing Cores() const override { return cores_; }
  Nanos Duration(const command::Command& command) const override {
    return costs_.Duration(command) * 10'000;
  }

 private:
  const dispatch::CostModel& costs_;
  const plan::CoreSharing cores_;
};

// Seconds from the end of the first step to that of the last.
template <typename Entry>
double StepsTogether(const std::vector<Entry>& timeline, int steps) {
  std::vector<Nanos> ends(steps);
  for (const Entry& entry : timeline) {
    const auto* host = std::get_if<command::HostTask>(&entry.command.body);
    if (host == nullptr || host->kind != command::HostTaskKind::kUpdate) continue;
    Nanos& end = ends[entry.command.header.step];
    end = std::max(end, entry.end);
  }
  return (ends.back() - ends.front()).seconds();
}

// The fast evaluation is the simulator without its messages, which are all that they differ by.
TEST(EvaluationTest, AgreesWithTheSimulator) {
  double worst = 0;
  for (uint64_t seed = first; seed < first + Instances(300); ++seed) {
    const sim::RandomCase c = sim::MakeRandomCase(seed);
    CounterRandom random(seed, 7);
    const Slower slower(*c.costs, RandomCores(random, c.plan.devices.size()));
    const EvaluateOptions evaluate{.steps = 3, .keep_timeline = true};
    const absl::StatusOr<Estimate> estimate = EvaluatePlan(c.model, c.plan, slower, evaluate);
    ASSERT_TRUE(estimate.ok()) << Seed(seed) << ": " << estimate.status();
    sim::SimOptions options;
    options.end_step = evaluate.steps;
    options.keep_timeline = true;
    const sim::SimResult result = sim::Simulate(c.model, c.plan, slower, options);
    ASSERT_TRUE(result.status.ok()) << Seed(seed) << ": " << result.status;
    int64_t between = 0;
    for (int d = 0; d < static_cast<int>(c.plan.devices.size()); ++d) {
      const command::LaneTable lanes(static_cast<int>(c.plan.devices.size()));
      between += estimate->lanes[lanes.IndexOf({command::LaneKind::kP2P, d})].bytes;
    }
    EXPECT_EQ(estimate->peer_bytes, between) << Seed(seed);
    const double simulated = StepsTogether(result.timeline, evaluate.steps);
    const double evaluated = StepsTogether(estimate->events, evaluate.steps);
    worst = std::max(worst, std::abs(1 - evaluated / simulated));
    EXPECT_LE(evaluated, simulated * 1.001) << Seed(seed);
    EXPECT_GE(evaluated, simulated * 0.999) << Seed(seed);
    for (int i = 0; i < 8; ++i) {
      // Which way a boundary tensor takes may change from step to step.
      if (i == static_cast<int>(command::TrafficClass::kBoundary)) continue;
      EXPECT_EQ(estimate->bytes[i] * evaluate.steps, result.moved_bytes[i]) << Seed(seed);
    }
  }
  std::printf("evaluated and simulated differ by %.2f%% at most\n", 100 * worst);
}

// A quick dry run issues the same commands in the same order, with the times that the dispatcher
// models: of commands that want a link at one time it does not always know which comes first.
TEST(DryRunTest, HasNearlyTheTimesOfTheCommands) {
  constexpr int kSteps = 3;
  const uint64_t cases = Instances(500);
  uint64_t different = 0;
  double off = 0, worst = 0;
  for (uint64_t seed = first; seed < first + cases; ++seed) {
    const sim::RandomCase c = sim::MakeRandomCase(seed);
    const auto costs = RandomCosts(c, seed);
    const absl::StatusOr<Estimate> estimate =
        EvaluatePlan(c.model, c.plan, *costs, {.steps = kSteps});
    ASSERT_TRUE(estimate.ok()) << Seed(seed) << ": " << estimate.status();
    const absl::StatusOr<QuickDryRun> dry_run = DryRunPlan(c.model, c.plan, *costs, {kSteps});
    ASSERT_TRUE(dry_run.ok()) << Seed(seed) << ": " << dry_run.status();
    EXPECT_EQ(dry_run->commands, estimate->commands) << Seed(seed);
    const double error = std::abs(1 - dry_run->step.seconds() / estimate->step.seconds());
    // Of two copies that want a link at one time a dry run may serve the wrong one first. Where all
    // layers are alike that moved no step by 10% in 3500 cases; in chains of uneven layers one copy
    // may be most of a step, and one case of 500 was 16% off.
    EXPECT_LT(error, 0.2) << Seed(seed);
    off += error;
    worst = std::max(worst, error);
    different += error > 0.001 ? 1 : 0;
  }
  std::printf(
      "quick and exact dry runs differ by %.3f%%, at most %.2f%%; %llu by more than 0.1%%\n",
      100 * off / static_cast<double>(cases), 100 * worst,
      static_cast<unsigned long long>(different));
  EXPECT_LE(different * 40, cases);
  EXPECT_LT(off / static_cast<double>(cases), cases < 100 ? 0.2 : 1e-3);
}

// Which takes a command for one of the lanes of all devices, as a model of all devices does.
class KnowsItsLanes : public dispatch::AnalyticCosts {
 public:
  KnowsItsLanes(const sim::RandomCase& c, const std::vector<plan::DeviceSpec>& devices)
      : AnalyticCosts(c.model, c.plan, devices), lanes_(static_cast<int>(devices.size())) {}
  Nanos Duration(const command::Command& command) const override {
    const command::Lane lane = lanes_.LaneAt(static_cast<int>(command.header.lane));
    EXPECT_EQ(command::IsHostLane(lane), std::holds_alternative<command::HostTask>(command.body));
    return AnalyticCosts::Duration(command);
  }

 private:
  const command::LaneTable lanes_;
};

TEST(DevicesForAllTest, AreAsManyAsAddUpAPartTogether) {
  plan::Plan plan;
  plan.num_microbatches = plan.replicas = 4;
  plan.devices.resize(4);
  const auto for_all = [&plan](const plan::DeviceSet& devices, int parts) {
    plan.forward_groups = {{{0, 0}, devices}};
    plan.backward_groups = {{{0, 1}, devices}};
    plan.backward_groups[0].gradient_parts = parts;
    return DevicesForAll(plan);
  };
  const plan::DeviceSet all = plan::DeviceSet::First(4);
  EXPECT_EQ(for_all(all, 4), 1);
  EXPECT_EQ(for_all(all, 2), 2);
  EXPECT_EQ(for_all(all, 1), 0);           // that is all of them
  EXPECT_EQ(for_all({0, 2, 1, 3}, 2), 0);  // devices 0 and 2 add up together
  EXPECT_EQ(for_all(0, 1), 0);
  plan.devices[3].root = 1;
  EXPECT_EQ(for_all(all, 2), 0);
}

// The first devices stand for all where they do the same: they are in step where the ring that
// gradients pass through has room for all of theirs.
TEST(DryRunTest, OfTheFirstDevicesHasNearlyTheTimeOfAllThatDoTheSame) {
  const uint64_t wanted = Instances(150);
  uint64_t cases = 0, several = 0;
  double off = 0, worst = 0;
  for (uint64_t seed = first; cases < wanted; ++seed) {
    sim::RandomCase c = sim::MakeRandomCase(seed);
    plan::DevicePlan most;
    for (const plan::DevicePlan& device : c.plan.devices) {
      if (device.resident > most.resident) most = device;
    }
    most.root = 0;
    c.plan.devices.assign(c.plan.devices.size(), most);
    if (DevicesForAll(c.plan) == 0) continue;
    ++cases;
    several += DevicesForAll(c.plan) > 1 ? 1 : 0;
    c.plan.gradient_ring = plan::ArenaLayout::MinimalRing(c.model, c.plan) * 4;
    c.plan.arena_dynamic = plan::ArenaLayout(c.model, c.plan).dynamic_bytes();
    CounterRandom random(seed, 5);
    const std::vector<plan::DeviceSpec> devices(c.plan.devices.size(),
                                                RandomDevices(random, 1).front());
    const KnowsItsLanes costs(c, devices);
    const absl::StatusOr<Estimate> estimate = EvaluatePlan(c.model, c.plan, costs);
    ASSERT_TRUE(estimate.ok()) << Seed(seed) << ": " << estimate.status();
    const absl::StatusOr<QuickDryRun> dry_run = DryRunPlan(c.model, c.plan, costs, {3, true});
    ASSERT_TRUE(dry_run.ok()) << Seed(seed) << ": " << dry_run.status();
    EXPECT_LT(dry_run->commands, estimate->commands) << Seed(seed);
    const double error = std::abs(1 - dry_run->step.seconds() / estimate->step.seconds());
    off += error;
    worst = std::max(worst, error);
  }
  EXPECT_GT(several, wanted / 50);
  std::printf(
      "the first devices (of %d plans several) and all of them differ by %.3f%%, at most %.2f%%\n",
      static_cast<int>(several), 100 * off / static_cast<double>(cases), 100 * worst);
  EXPECT_LT(off / static_cast<double>(cases), 0.002);
}

// A long step: of microbatches so large that what is kept of each for the loss does not count. What
// the plan's devices have beside what they need is multiplied by `more_room`.
void Lengthen(const model::ModelSpec& model, int microbatches, int64_t more_room,
              plan::Plan* plan) {
  const auto need = [&] { return NeedOfDevices(*plan, NeedOfGroups(model, *plan)); };
  const std::vector<DeviceNeed> before = need();
  plan->num_microbatches = microbatches;
  plan->microbatch_size = 1 << 16;
  const std::vector<DeviceNeed> after = need();
  for (size_t d = 0; d < plan->devices.size(); ++d) {
    Bytes& resident = plan->devices[d].resident;
    resident =
        after[d].resident.resident() + (resident - before[d].resident.resident()) * more_room;
  }
  plan->arena_dynamic = plan::ArenaLayout(model, *plan).dynamic_bytes();
}

// It is a step of its own, and so is half of it: of whole replicas and forward tasks.
TEST(SampleTest, OfVeryManyMicrobatchesIsAPlanOfTheSameReplicas) {
  constexpr int kSteps[][3] = {{10000, 16, 1}, {16000, 16, 5}, {8448, 8, 1},
                               {2304, 2, 3},   {4096, 512, 2}, {16384, 16, 4},
                               {3000, 8, 125}, {4096, 2048, 2}};  // these are not sampled
  for (const auto& [microbatches, replicas, task_microbatches] : kSteps) {
    plan::Plan plan;
    plan.devices.resize(1);
    plan.num_microbatches = microbatches;
    plan.replicas = replicas;
    plan.microbatches_per_forward_task = task_microbatches;
    plan.backward_groups.resize(1);
    const int sample = SampleOfMicrobatches(plan);
    if (sample != microbatches) {
      EXPECT_LT(sample, microbatches / 2);
      EXPECT_EQ(sample % (2 * replicas), 0) << sample;
      EXPECT_EQ(sample % (2 * task_microbatches), 0) << sample;
    }
    EXPECT_EQ(sample == microbatches, microbatches == 3000 || replicas == 2048) << sample;
  }
}

// Of steps of very many microbatches a sample is run dry. Where the sample has just enough memory
// for another way to run than the whole, it can be far off.
TEST(DryRunTest, OfASampleHasNearlyTheTimeOfAllMicrobatches) {
  constexpr int kMicrobatches = 2304;
  const uint64_t wanted = Instances(testing_support::kSanitized ? 8 : 40);
  uint64_t cases = 0, different = 0, near = 0;
  double off = 0, worst = 0;
  for (uint64_t seed = first; cases < wanted; ++seed) {
    sim::RandomCase c = sim::MakeRandomCase(seed);
    if (!AlikeMicrobatches(c.plan)) continue;
    if (kMicrobatches % c.plan.microbatches_per_forward_task != 0) continue;
    ++cases;
    Lengthen(c.model, kMicrobatches, int64_t{1} << CounterRandom(seed, 6).Below(12), &c.plan);
    ASSERT_LT(SampleOfMicrobatches(c.plan), kMicrobatches);
    const auto costs = RandomCosts(c, seed);
    const absl::StatusOr<Estimate> estimate = EvaluatePlan(c.model, c.plan, *costs);
    ASSERT_TRUE(estimate.ok()) << Seed(seed) << ": " << estimate.status();
    const absl::StatusOr<QuickDryRun> dry_run = DryRunPlan(c.model, c.plan, *costs);
    ASSERT_TRUE(dry_run.ok()) << Seed(seed) << ": " << dry_run.status();
    const double error = std::abs(1 - dry_run->step.seconds() / estimate->step.seconds());
    EXPECT_GT(dry_run->step, Nanos()) << Seed(seed);
    worst = std::max(worst, error);
    (error > 0.05 ? different : near) += 1;
    if (error <= 0.05) off += error;
  }
  off /= static_cast<double>(near);
  std::printf(
      "a quick dry run of a sample and an exact one of all differ by %.3f%%; %llu by more than "
      "5%%, at most "
      "%.2f%%\n",
      100 * off, static_cast<unsigned long long>(different), 100 * worst);
  EXPECT_LE(different * 40, wanted);
  EXPECT_LT(off, 0.002);
}

// Two layers a device, one microbatch: what a step takes can be counted by hand.
TEST(EvaluationTest, CountsUnits) {
  const model::ModelSpec model = dispatch::SmallModel();
  plan::Plan plan = dispatch::SmallPlan(model, 1);
  plan.num_microbatches = 1;
  plan.gradient_ring = plan::ArenaLayout::DefaultRing(model, plan);
  plan.arena_dynamic = plan::ArenaLayout(model, plan).dynamic_bytes();
  const dispatch::UnitCosts costs;
  const absl::StatusOr<Estimate> estimate = EvaluatePlan(model, plan, costs);
  ASSERT_TRUE(estimate.ok()) << estimate.status();
  const command::LaneTable lanes(1);
  const LaneTotals& compute = estimate->lanes[lanes.IndexOf({command::LaneKind::kCompute, 0})];
  EXPECT_EQ(compute.busy, Nanos(2 + 2 + 4 + 4 + 4));
  EXPECT_EQ(compute.commands, 5);
  EXPECT_EQ(estimate->peer_bytes, 0);
  const plan::MinimalSwap swap = plan::ComputeMinimalSwap(model, plan);
  EXPECT_EQ(Bytes(estimate->bytes[static_cast<size_t>(command::TrafficClass::kWeights)]),
            swap.weights);
  EXPECT_GE(estimate->step, compute.busy + Nanos(2));  // the last gradient out, its update
}

// Two groups on two devices, whose copies cost ten times what all else does.
TEST(EvaluationTest, DevicesOfOneRootTakeTurns) {
  class CopyCosts : public dispatch::CostModel {
   public:
    Nanos Duration(const command::Command& command) const override {
      return Nanos(std::holds_alternative<command::Transfer>(command.body) ? 1000 : 1);
    }
  };
  const model::ModelSpec model = dispatch::SmallModel(2);
  plan::Plan plan = dispatch::SmallPlan(model, 2);
  const CopyCosts costs;
  const command::LaneTable lanes(2);
  const auto busy = [&](const Estimate& estimate, command::LaneKind kind) {
    return estimate.lanes[lanes.IndexOf({kind, 0})].busy +
           estimate.lanes[lanes.IndexOf({kind, 1})].busy;
  };
  const absl::StatusOr<Estimate> apart = EvaluatePlan(model, plan, costs);
  ASSERT_TRUE(apart.ok()) << apart.status();
  for (plan::DevicePlan& device : plan.devices) device.root = 1;
  const absl::StatusOr<Estimate> together = EvaluatePlan(model, plan, costs);
  ASSERT_TRUE(together.ok()) << together.status();
  EXPECT_GT(together->step, apart->step);
  EXPECT_GE(together->step, busy(*together, command::LaneKind::kH2DBulk) +
                                busy(*together, command::LaneKind::kH2DStream));
  EXPECT_GE(together->step, busy(*together, command::LaneKind::kD2H));
}

TEST(EvaluationTest, SaysWhatDoesNotRun) {
  const model::ModelSpec model = dispatch::SmallModel();
  plan::Plan plan = dispatch::SmallPlan(model, 1);
  plan.devices[0].resident = Bytes(256);
  const dispatch::UnitCosts costs;
  EXPECT_EQ(EvaluatePlan(model, plan, costs).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace harmony::planner

int main(int argc, char** argv) {
  return harmony::testing_support::RunAllTests(
      argc, argv,
      {{.name = "instances", .number = &harmony::planner::instances},
       {.name = "first", .number = &harmony::planner::first}});
}
