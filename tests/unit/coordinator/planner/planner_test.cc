#include "coordinator/planner/planner.h"

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/model/families/causal_lm.h"
#include "common/plan/arena_layout.h"
#include "coordinator/dispatch/costs/analytic_costs.h"
#include "coordinator/planner/search/grouping.h"
#include "coordinator/planner/search/microbatch.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/simulator/simulation.h"
#include "tests/unit/coordinator/planner/gpt2_case.h"

namespace harmony::planner {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

double BytesPerParameter(const model::ModelSpec& model, const plan::Plan& plan) {
  const plan::ArenaLayout layout(model, plan);
  const double bytes =
      static_cast<double>((layout.end() - layout.stash_and_boundary_bytes()).count());
  return (bytes - 8 * static_cast<double>(model.tied_parameter_count())) /
         static_cast<double>(model.parameter_count());
}

TEST(PlannerTest, Gpt2FitsHalfAGibibyteADevice) {
  const model::ModelSpec model = Gpt2();
  for (const char* devices : {"sim:mem=512MiB", "sim*4:mem=512MiB"}) {
    for (double norm : {0.0, 1.0}) {
      job::JobSpec job = Gpt2Job();
      job.virtual_replicas = 1;  // the host holds the parts that gradients of more leave in
      job.max_grad_norm = norm;
      const absl::StatusOr<PlanResult> planned = PlanQuickly(model, job, Machine(devices));
      ASSERT_TRUE(planned.ok()) << devices << ": " << planned.status();
      const plan::Plan* plan = &planned->plan;
      EXPECT_EQ(plan->microbatch_size, 2);
      EXPECT_LE(BytesPerParameter(model, *plan), norm > 0 ? 17 : 14) << devices;
    }
  }
}

// Updates that nobody wants deferred keep all gradients on the host: a fiftieth of the step has to
// be won by them, but on a host that hardly notices.
TEST(PlannerTest, HostMemoryThatIsPlentyCostsNothing) {
  const model::ModelSpec model = Gpt2();
  plan::MachineSpec machine = Machine("sim:mem=512MiB");
  plan::Plan plan = PlanQuickly(model, Gpt2Job(), machine)->plan;
  plan.update = job::UpdateMode::kDeferred;
  machine.segment_for = [](Bytes) { return Bytes(1); };  // whatever it is, the host has room
  const auto charge = [&](Bytes host) {
    machine.host_memory = host;
    const PlanBuilder builder(model, Gpt2Job(), machine, 2);
    return builder.Score(plan, Seconds(100)).seconds() - 100;
  };
  Bytes half;
  for (const model::ParamBlock& block : model.blocks) {
    if (!block.tied()) half += Bytes(block.gradient_bytes.count() / 2);
  }
  EXPECT_NEAR(charge(Bytes()), 2, 1e-6);
  EXPECT_NEAR(charge(Bytes(half.count() * 19)), 2, 1e-6);
  EXPECT_EQ(charge(Bytes(half.count() * 21)), 0);
}

// Whatever their order.
TEST(PlannerTest, DevicesThatAreTooSmallRunNothing) {
  const model::ModelSpec model = Gpt2();
  for (const char* devices : {"sim:mem=1MiB sim:mem=600MiB", "sim:mem=600MiB sim:mem=1MiB",
                              "sim:mem=600MiB sim:mem=20MiB sim:mem=512MiB"}) {
    const plan::MachineSpec machine = Machine(devices);
    const absl::StatusOr<PlanResult> planned = PlanQuickly(model, Gpt2Job(), machine);
    ASSERT_TRUE(planned.ok()) << devices << ": " << planned.status();
    for (const plan::LayerGroup& group : planned->plan.backward_groups) {
      for (int device : group.devices) {
        EXPECT_GT(machine.devices[device].memory, MiB(20)) << devices;
      }
    }
  }
}

TEST(PlannerTest, DataModeRunsAllGroupsOnEachDevice) {
  const model::ModelSpec model = Gpt2();
  job::JobSpec job = Gpt2Job();
  job.mode = "harmony-dp";
  const plan::MachineSpec machine = Machine(kFourPaced);
  const absl::StatusOr<PlanResult> planned = PlanQuickly(model, job, machine);
  ASSERT_TRUE(planned.ok()) << planned.status();
  const plan::Plan& plan = planned->plan;
  EXPECT_STREQ(plan::ModeOf(plan), "harmony-dp");
  EXPECT_EQ(plan.replicas, 16);
  EXPECT_EQ(plan.backward_groups[0].devices, (plan::DeviceSet{0, 1, 2, 3}));
  for (const plan::LayerGroup& group : plan.backward_groups) EXPECT_EQ(group.gradient_parts, 4);
  EXPECT_LE(planned->report.lower_bound, planned->estimate.step);
  const std::string text = ExplainPlan(model, *planned, machine);
  EXPECT_THAT(text, HasSubstr("harmony-dp in fp32 on 4 devices"));
  EXPECT_THAT(text, HasSubstr("4 devices run each all layer groups with 4 of the 16"));
  EXPECT_THAT(text, HasSubstr("16 replicas of 1 microbatches"));
  EXPECT_THAT(PlanToJson(model, *planned, machine), HasSubstr("\"virtual_replicas\":16"));

  job.virtual_replicas = 2;
  const absl::StatusOr<PlanResult> two = PlanQuickly(model, job, machine);
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(two->plan.backward_groups[0].devices, (plan::DeviceSet{0, 1}));
  EXPECT_THAT(ExplainPlan(model, *two, machine), HasSubstr("2 idle"));
}

// A device that is three times as fast has three quarters of a group's microbatches.
TEST(PlannerTest, UnequalDevicesShareGroupsByTheirSpeeds) {
  const model::ModelSpec model = Gpt2();
  job::JobSpec job = Gpt2Job();
  const plan::MachineSpec machine = Machine(
      "sim:mem=2GiB,flops=90G,h2d=4GB/s,d2h=4GB/s,p2p=4GB/s "
      "sim:mem=2GiB,flops=30G,h2d=4GB/s,d2h=4GB/s,p2p=4GB/s");
  const PlanBuilder builder(model, job, machine, 1, {DeviceSets::kAny, 8});
  EXPECT_THAT(builder.DeviceChoices(),
              ::testing::ElementsAre(plan::DeviceSet(0), plan::DeviceSet(1), plan::DeviceSet{0, 1},
                                     (plan::DeviceSet{0, 0, 0, 1})));
  PlannerOptions options;
  options.search.work = 4'000'000;  // a quick search may end with a pipeline
  const absl::StatusOr<PlanResult> planned = MakePlan(model, job, machine, options);
  ASSERT_TRUE(planned.ok()) << planned.status();
  // All but the embedding: where a step ends another set may wait less.
  for (const plan::LayerGroup& group : planned->plan.backward_groups) {
    if (group.layers.first > 0) {
      EXPECT_EQ(group.devices, (plan::DeviceSet{0, 0, 0, 1})) << DebugString(planned->plan);
    }
  }
  job.mode = "harmony-dp";  // in equal shares
  const absl::StatusOr<PlanResult> equal = PlanQuickly(model, job, machine);
  ASSERT_TRUE(equal.ok()) << equal.status();
  EXPECT_LT(planned->estimate.step.seconds(), 0.65 * equal->estimate.step.seconds());
}

// What devices would each load over the link that they share goes there once.
TEST(PlannerTest, DevicesThatShareALinkPassWeightsOn) {
  const model::ModelSpec model = Gpt2();
  job::JobSpec job = Gpt2Job();
  job.mode = "harmony-dp";
  const plan::MachineSpec shared = Machine(absl::StrCat(kFourPaced, ",root=a")),
                          own = Machine(kFourPaced);
  const absl::StatusOr<PlanResult> passed = PlanQuickly(model, job, shared);
  ASSERT_TRUE(passed.ok()) << passed.status();
  EXPECT_TRUE(passed->plan.pass_weights);
  EXPECT_LE(passed->report.lower_bound, passed->estimate.step);
  EXPECT_THAT(ExplainPlan(model, *passed, shared),
              HasSubstr("Weights go on from device to device (0 to 1, 1 to 2, 2 to 3)"));
  plan::Plan loaded = passed->plan;
  loaded.pass_weights = false;
  PlannerOptions options;
  options.given = &loaded;
  options.given_path = "p.json";
  const absl::StatusOr<PlanResult> by_host = MakePlan(model, job, shared, options);
  ASSERT_TRUE(by_host.ok()) << by_host.status();
  EXPECT_LT(passed->estimate.step, by_host->estimate.step);
  const auto weights = [](const PlanResult& result) {
    return result.estimate.bytes[static_cast<size_t>(command::TrafficClass::kWeights)];
  };
  EXPECT_EQ(weights(*by_host), 4 * weights(*passed));
  const absl::StatusOr<PlanResult> alone = PlanQuickly(model, job, own);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_FALSE(alone->plan.pass_weights);
}

TEST(PlannerTest, AutoTakesTheBetterModeAndNamesTheOther) {
  const model::ModelSpec model = Gpt2();
  job::JobSpec job = Gpt2Job();
  job.virtual_replicas = 4;
  const plan::MachineSpec machine = Machine(kFourPaced);
  PlannerOptions options;
  options.explain = true;
  const absl::StatusOr<PlanResult> planned = PlanQuickly(model, job, machine, options);
  ASSERT_TRUE(planned.ok()) << planned.status();
  int others = 0;
  for (const char* mode : {"harmony-pp", "harmony-dp"}) {
    for (const Alternative& other : planned->alternatives) {
      if (!absl::StrContains(other.what, mode)) continue;
      ++others;
      EXPECT_STRNE(plan::ModeOf(planned->plan), mode);
      job.mode = mode;
      const absl::StatusOr<PlanResult> asked = PlanQuickly(model, job, machine);
      ASSERT_TRUE(asked.ok()) << asked.status();
      EXPECT_EQ(other.step, asked->estimate.step);
    }
  }
  EXPECT_GE(others, 1);
}

// In plain words, each once, and nothing that is as good as the plan without a word why not.
TEST(PlannerTest, AlternativesSayWhyTheyLose) {
  const model::ModelSpec model = Gpt2();
  PlannerOptions options;
  options.explain = true;
  bool recomputes = false;
  for (const char* devices :
       {"sim:mem=512MiB,flops=100G,h2d=1GB/s,d2h=1GB/s",
        "sim:mem=8GiB,flops=100G,h2d=20GB/s,d2h=20GB/s,host=50GB/s", kFourPaced}) {
    const absl::StatusOr<PlanResult> planned =
        PlanQuickly(model, Gpt2Job(), Machine(devices), options);
    ASSERT_TRUE(planned.ok()) << planned.status();
    std::set<std::string> seen;
    for (const Alternative& other : planned->alternatives) {
      const std::string said = absl::StrCat(other.what, ": ", other.why);
      EXPECT_TRUE(seen.insert(other.what).second) << said;
      EXPECT_FALSE(other.why.empty()) << said;
      EXPECT_THAT(said.substr(said.find(": ", 6)), Not(HasSubstr("_"))) << "the name of a lane";
      if (!other.fits || absl::StartsWith(other.what, "mode")) continue;
      const double ratio = other.step.seconds() / planned->estimate.step.seconds();
      EXPECT_EQ(absl::StrContains(other.why, "longer"), ratio > 1.0005) << said;
      EXPECT_EQ(absl::StartsWith(other.why, "faster"), ratio < 0.9995) << said;
      if (other.what != "every backward recomputes, no activations kept") continue;
      recomputes = true;
      EXPECT_THAT(other.why, ContainsRegex("device [0-9] computes ")) << said;
    }
  }
  EXPECT_TRUE(recomputes);
}

TEST(PlannerTest, ExplainSaysWhatOneMoreDeviceWouldBring) {
  const model::ModelSpec model = Gpt2();
  PlannerOptions options;
  options.explain = true;
  const plan::MachineSpec one = Machine("sim:mem=2GiB,flops=100G,h2d=1GB/s,d2h=1GB/s");
  const absl::StatusOr<PlanResult> planned = PlanQuickly(model, Gpt2Job(), one, options);
  ASSERT_TRUE(planned.ok()) << planned.status();
  const absl::StatusOr<PlanResult> two =
      PlanQuickly(model, Gpt2Job(), Machine("sim*2:mem=2GiB,flops=100G,h2d=1GB/s,d2h=1GB/s"));
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(planned->with_one_more, two->estimate.step);
  const std::string text = ExplainPlan(model, *planned, one);
  EXPECT_THAT(text, HasSubstr("One more device like device 0: "));
  EXPECT_THAT(text, HasSubstr("(2 devices for 1: 2.00)"));
  EXPECT_THAT(PlanToJson(model, *planned, one), HasSubstr("\"times_as_fast\""));
  // Nothing is said where it was not measured how fast that device would be.
  options.costs = dispatch::AnalyticCostFactory(model, one.devices);
  const absl::StatusOr<PlanResult> measured = PlanQuickly(model, Gpt2Job(), one, options);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_EQ(measured->with_one_more, Nanos());
  const plan::MachineSpec faster = Machine("sim*2:mem=2GiB,flops=200G,h2d=2GB/s,d2h=2GB/s");
  options.costs_with_one_more = dispatch::AnalyticCostFactory(model, faster.devices);
  const absl::StatusOr<PlanResult> known = PlanQuickly(model, Gpt2Job(), one, options);
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_GT(known->with_one_more, Nanos());
  EXPECT_LT(known->with_one_more, planned->with_one_more) << "by the costs that are given";
}

// Of a search whose first plans take all of its work, and of which most others do not fit.
TEST(PlannerTest, ASearchEndsThatHasNoWorkLeft) {
  const model::ModelSpec model = Gpt2();
  PlannerOptions options;
  options.search.work = 1;
  const absl::StatusOr<PlanResult> planned =
      MakePlan(model, Gpt2Job(), Machine("sim*2:mem=512MiB"), options);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_LT(planned->report.bounded, 2000);
}

TEST(PlannerTest, AnOptimizerWithoutMomentsHasNoPlaceForThem) {
  const model::ModelSpec model = Gpt2();
  job::JobSpec job = Gpt2Job();
  job.optim = job::OptimizerKind::kSgd;
  job.virtual_replicas = 1;
  const absl::StatusOr<PlanResult> planned = PlanQuickly(model, job, Machine("sim*2:mem=512MiB"));
  ASSERT_TRUE(planned.ok()) << planned.status();
  const plan::Plan* plan = &planned->plan;
  EXPECT_LE(BytesPerParameter(model, *plan), 6);
}

// Large microbatches leave room for small groups only, and these have many stashes.
TEST(PlannerTest, AutomaticMicrobatchesAreSmallerWhereTheHostIs) {
  const model::ModelSpec model = Gpt2();
  job::JobSpec job = Gpt2Job();
  job.micro_batch_size = 0;
  job.global_batch_size = 256;
  job.virtual_replicas = 1;  // of which the head has room for large microbatches
  plan::MachineSpec machine =
      Machine("sim:mem=512MiB,flops=1000T,h2d=100GB/s,d2h=100GB/s,p2p=100GB/s,host=10TB/s");
  job.micro_batch_size = 1;
  const absl::StatusOr<PlanResult> smallest = PlanQuickly(model, job, machine);
  ASSERT_TRUE(smallest.ok()) << smallest.status();
  job.micro_batch_size = 0;
  machine.host_memory = plan::ArenaLayout(model, smallest->plan).end();
  const absl::StatusOr<PlanResult> tight = PlanQuickly(model, job, machine);
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_LE(plan::ArenaLayout(model, tight->plan).end(), machine.host_memory);
  machine.host_memory = GiB(100);
  const absl::StatusOr<PlanResult> roomy = PlanQuickly(model, job, machine);
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  EXPECT_LT(tight->plan.microbatch_size, roomy->plan.microbatch_size)
      << plan::ArenaLayout(model, tight->plan).end().count() << " of "
      << plan::ArenaLayout(model, roomy->plan).end().count();
}

TEST(PlannerTest, TakesLayerGroupsFromTheJob) {
  job::JobSpec job = Gpt2Job();
  job.mode = "harmony-pp";
  job.layer_groups = {3, 3, 3, 3};  // blocks; embedding and head join the outer ones
  const absl::StatusOr<PlanResult> planned = PlanQuickly(Gpt2(), job, Machine("sim*3:mem=1GiB"));
  ASSERT_TRUE(planned.ok()) << planned.status();
  const plan::Plan* plan = &planned->plan;
  ASSERT_EQ(plan->backward_groups.size(), 4);
  EXPECT_EQ(plan->backward_groups[0].layers, (model::LayerRange{0, 3}));
  EXPECT_EQ(plan->backward_groups[3].layers, (model::LayerRange{10, 13}));
  EXPECT_EQ(plan->backward_groups[3].devices, plan::DeviceSet(0));
  job.layer_groups = {3, 3};
  EXPECT_THAT(PlanQuickly(Gpt2(), job, Machine("sim:mem=1GiB")).status().message(),
              HasSubstr("layer_groups"));
}

TEST(PlannerTest, KeepsWeightsWhereThereIsRoom) {
  const model::ModelSpec model = Gpt2();
  job::JobSpec job = Gpt2Job();
  job.layer_groups = {3, 3, 3, 3};
  job.virtual_replicas = 1;  // one gradient buffer
  const absl::StatusOr<PlanResult> roomy = PlanQuickly(model, job, Machine("sim*2:mem=2GiB"));
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  for (size_t g = 0; g < 3; ++g) EXPECT_TRUE(roomy->plan.backward_groups[g].keep_weights) << g;
  EXPECT_FALSE(roomy->plan.backward_groups[3].keep_weights);  // fused
  const std::string text = ExplainPlan(model, *roomy, Machine("sim*2:mem=2GiB"));
  EXPECT_THAT(text, HasSubstr("weights kept"));
  EXPECT_THAT(text, HasSubstr("of it from forward to backward"));
}

// With memory for all activations nothing is computed twice; with stashes on the host there is no
// such choice.
TEST(PlannerTest, KeepsActivationsWhereThereIsRoom) {
  const model::ModelSpec model = Gpt2();
  job::JobSpec job = Gpt2Job();
  job.layer_groups = {3, 3, 3, 5};
  const plan::MachineSpec roomy =
      Machine("sim*2:mem=16GiB,flops=100G,h2d=4GB/s,d2h=4GB/s,p2p=4GB/s");
  const absl::StatusOr<PlanResult> keeping = PlanQuickly(model, job, roomy);
  ASSERT_TRUE(keeping.ok()) << keeping.status();
  int kept = 0;  // where it makes the step shorter: not on a device that waits for another
  for (const plan::LayerGroup& group : keeping->plan.backward_groups)
    kept += group.keep_activations;
  EXPECT_GE(kept, 1) << DebugString(keeping->plan);
  EXPECT_THAT(ExplainPlan(model, *keeping, roomy), HasSubstr("activations kept"));
  EXPECT_THAT(PlanToJson(model, *keeping, roomy), HasSubstr("\"keep_activations\":true"));
  job.stash = job::StashPlacement::kHost;
  const absl::StatusOr<PlanResult> recomputing = PlanQuickly(model, job, roomy);
  ASSERT_TRUE(recomputing.ok()) << recomputing.status();
  for (const plan::LayerGroup& group : recomputing->plan.backward_groups) {
    EXPECT_FALSE(group.keep_activations);
  }
  EXPECT_LT(keeping->estimate.step.seconds(), 0.97 * recomputing->estimate.step.seconds());
  EXPECT_LE(keeping->report.lower_bound, keeping->estimate.step);
}

TEST(PlannerTest, StashesStayOnTheDevicesWhenAskedTo) {
  const model::ModelSpec model = Gpt2();
  job::JobSpec job = Gpt2Job();
  job.stash = job::StashPlacement::kDevice;
  const absl::StatusOr<PlanResult> plan = PlanQuickly(model, job, Machine("sim*2:mem=2GiB"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan::ComputeMinimalSwap(model, plan->plan).stash, Bytes(0));
  EXPECT_THAT(ExplainPlan(model, *plan, Machine("sim*2:mem=2GiB")),
              HasSubstr("stashes on the device"));
  const absl::StatusOr<PlanResult> tight = PlanQuickly(model, job, Machine("sim*2:mem=384MiB"));
  ASSERT_EQ(tight.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(tight.status().message(), HasSubstr("or with stash: host"));
  const std::string message(tight.status().message());
  const size_t at = message.find("mem=");
  ASSERT_NE(at, std::string::npos) << message;
  const std::string memory =
      message.substr(at + 4, message.find_first_not_of("0123456789", at + 4) - at - 4);
  EXPECT_TRUE(PlanQuickly(model, job, Machine("sim*2:mem=" + memory)).ok()) << message;
}

TEST(PlannerTest, AutoMicrobatchDividesTheBatch) {
  job::JobSpec job = Gpt2Job();
  job.micro_batch_size = 0;
  job.global_batch_size = 12;
  const absl::StatusOr<PlanResult> planned = PlanQuickly(Gpt2(), job, Machine("sim:mem=1GiB"));
  ASSERT_TRUE(planned.ok()) << planned.status();
  const plan::Plan* plan = &planned->plan;
  EXPECT_EQ(plan->microbatch_size, 3);
  EXPECT_EQ(plan->num_microbatches, 4);
}

// With nothing measured, a device more makes no other size, and there is work for several.
TEST(PlannerTest, AutoMicrobatchesOfOpenReplicasLeaveWorkForSeveralDevices) {
  job::JobSpec job = Gpt2Job();
  job.global_batch_size = 8;
  job.micro_batch_size = 0;
  job.mode = "harmony-dp";
  for (const char* devices : {"sim:mem=1GiB", "sim*4:mem=1GiB"}) {
    const absl::StatusOr<PlanResult> planned = PlanQuickly(Gpt2(), job, Machine(devices));
    ASSERT_TRUE(planned.ok()) << planned.status();
    EXPECT_EQ(planned->plan.microbatch_size, 2);
    EXPECT_EQ(planned->plan.replicas, 4);
    EXPECT_EQ(planned->plan.backward_groups[0].devices.num_shards(),
              static_cast<int>(planned->plan.devices.size()));
  }
}

TEST(PlannerTest, AutoMicrobatchesAreNotTooMany) {
  model::ModelSpec model = Gpt2();
  job::JobSpec job = Gpt2Job();
  job.global_batch_size = 1'000'000;
  job.micro_batch_size = 0;
  const plan::MachineSpec machine = Machine("sim:mem=64GiB");
  const dispatch::CostFactory costs = dispatch::AnalyticCostFactory(model, machine.devices);
  for (const bool informed : {false, true}) {
    for (int replicas : {0, 1, 8}) {
      const std::vector<int64_t> sizes = MicrobatchSizes(
          model, job, machine, {DeviceSets::kSingle, replicas}, costs, informed, OneAfterTheOther);
      ASSERT_FALSE(sizes.empty());
      for (int64_t size : sizes) EXPECT_LE(job.global_batch_size / size, 16384);
    }
  }
}

TEST(PlannerTest, SaysWhichSpeedsAreNotGiven) {
  const auto basis = [](const char* devices) {
    const absl::StatusOr<PlanResult> planned = PlanQuickly(Gpt2(), Gpt2Job(), Machine(devices));
    return planned.ok() ? planned->basis : std::string(planned.status().message());
  };
  EXPECT_THAT(basis("sim*2:mem=2GiB"), HasSubstr("since no speeds are given"));
  EXPECT_THAT(
      basis("sim:mem=2GiB,flops=5G"),
      HasSubstr("guesses where no speed is given, which is h2d= of device 0, d2h= of device 0 ("));
  EXPECT_THAT(basis("sim:mem=2GiB,flops=5G,h2d=1GB/s,d2h=1GB/s;sim:mem=2GiB,h2d=1GB/s,d2h=1GB/s"),
              HasSubstr("where no speed is given, which is p2p= of device 0, flops= of device 1, "
                        "p2p= of device 1 ("));
  EXPECT_THAT(basis("sim:mem=2GiB,flops=5G,h2d=1GB/s,d2h=1GB/s"), HasSubstr("modelled: "));
}

// A model of 60 blocks is planned in a moment, too.
TEST(PlannerTest, PlansADeepModel) {
  model::ModelConfig config =
      *model::ParseModelConfig(*model::PresetConfigJson("gpt2-124m"), "deep");
  config.num_layers = 60;
  const model::ModelSpec model = model::BuildModelSpec(config, 256);
  const absl::StatusOr<PlanResult> planned =
      PlanQuickly(model, Gpt2Job(), Machine("sim*8:mem=512MiB"));
  ASSERT_TRUE(planned.ok()) << planned.status();
  const plan::Plan* plan = &planned->plan;
  EXPECT_GE(plan->backward_groups.size(), 8);
}

TEST(GroupingTest, BalancesTheLargestGroup) {
  const double costs[] = {4, 1, 1, 1, 1, 4};
  auto cost = [&](model::LayerRange range) {
    double sum = 0;
    for (int i = range.first; i <= range.last; ++i) sum += costs[i];
    return sum;
  };
  const std::vector<model::LayerRange> expected = {{0, 0}, {1, 4}, {5, 5}};
  EXPECT_EQ(BalancedPartition(3, CostTable(6, cost)), expected);
}

}  // namespace
}  // namespace harmony::planner
