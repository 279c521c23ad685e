#include "coordinator/dispatch/costs/profiled_costs.h"

#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/simulator/simulation.h"
#include "tests/support/quick_search.h"
#include "tests/support/sample_profile.h"
#include "tests/unit/coordinator/dispatch/small_case.h"

namespace harmony::dispatch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kWake = 20e-6, kTask = 50e-6;

// Two blocks, two devices; shapes: embedding 1 ms, blocks 2 ms, head 3 ms a sequence.
class ProfiledCostsTest : public ::testing::Test {
 protected:
  explicit ProfiledCostsTest(int devices = 2)
      : model_(SmallModel(2)), plan_(SmallPlan(model_, devices)) {
    job_.sequence_length = plan_.sequence_length;
    const std::vector<plan::DeviceSpec> specs(devices, plan::ParseDevices("sim:mem=1MiB")->front());
    profile_ = testing_support::SampleProfile(model_, job_, specs);
    profile_.devices.back().together = devices > 1 ? 1.5 : 1;
  }

  double Seconds(const command::Lane& lane, decltype(command::Command::body) body) const {
    command::Command command;
    command.header.lane = command::LaneTable(static_cast<int>(plan_.devices.size())).IndexOf(lane);
    command.body = std::move(body);
    return ProfiledCosts(profile_, model_, plan_).Duration(command).seconds() - kWake;
  }
  double Compute(int device, command::TaskKind kind, model::LayerRange layers, int64_t samples = 1,
                 bool first = false, bool last = false) const {
    command::ComputeTask task;
    task.kind = kind;
    task.layers = layers;
    task.samples = samples;
    task.first_microbatch = first;
    task.last_microbatch = task.stores_gradients = last;
    return Seconds({command::LaneKind::kCompute, device}, task);
  }
  double Kept(command::TaskKind kind, model::LayerRange layers) const {
    command::ComputeTask task;
    task.kind = kind;
    task.layers = layers;
    task.samples = 1;
    task.kept = Bytes(0);
    return Seconds({command::LaneKind::kCompute, 0}, task);
  }
  double Copy(command::LaneKind lane, int64_t bytes) const {
    command::Transfer transfer;
    transfer.size = Bytes(bytes);
    return Seconds({lane, 1}, transfer);
  }
  double Host(command::HostTaskKind kind, int block = 0) const {
    command::HostTask task;
    task.kind = kind;
    task.block = block;
    task.gradient_records = {0};
    return Seconds({command::LaneKind::kHostCompute, 0}, task);
  }

  model::ModelSpec model_;
  plan::Plan plan_;
  job::JobSpec job_;
  profile::Profile profile_;
};

class FourDevicesProfiledCostsTest : public ProfiledCostsTest {
 protected:
  FourDevicesProfiledCostsTest() : ProfiledCostsTest(4) {}
};

class OneDeviceProfiledCostsTest : public ProfiledCostsTest {
 protected:
  OneDeviceProfiledCostsTest() : ProfiledCostsTest(1) {}
};

TEST_F(ProfiledCostsTest, TasksTakeTheSumOfTheirLayers) {
  EXPECT_NEAR(Compute(0, command::TaskKind::kForward, {0, 0}), 1.5e-3, 1e-9);
  EXPECT_NEAR(Compute(0, command::TaskKind::kForward, {0, 2}), 1.5e-3 + 2 * 2.5e-3, 1e-9);
  // The last block of a group leaves its output out, the one before does not.
  EXPECT_NEAR(Compute(0, command::TaskKind::kBackward, {2, 2}), 7.5e-3, 1e-9);
  EXPECT_NEAR(Compute(0, command::TaskKind::kBackward, {1, 2}), 8.5e-3 + 7.5e-3, 1e-9);
  EXPECT_NEAR(Compute(0, command::TaskKind::kBackward, {0, 0}), 4.5e-3, 1e-9);
  EXPECT_NEAR(Compute(0, command::TaskKind::kForwardBackward, {2, 3}), 8.5e-3 + 10.5e-3, 1e-9);
  // With the embedding, its forward comes on top.
  EXPECT_NEAR(Compute(0, command::TaskKind::kForwardBackward, {0, 3}),
              1.5e-3 + 4.5e-3 + 2 * 8.5e-3 + 10.5e-3, 1e-9);
}

TEST_F(ProfiledCostsTest, BackwardsOfKeptActivationsAreMeasuredOrWhatTheRecomputeLeaves) {
  EXPECT_NEAR(Kept(command::TaskKind::kForward, {1, 2}), 2 * 2.5e-3, 1e-9);
  EXPECT_NEAR(Kept(command::TaskKind::kBackward, {1, 2}), 2 * (8.5e-3 - 2.5e-3), 1e-9);
  EXPECT_NEAR(Kept(command::TaskKind::kBackward, {0, 1}), 4.5e-3 + 6e-3, 1e-9);
  for (profile::LayerProfile& layer : profile_.devices[0].layers) {
    if (layer.kind != "block") continue;
    for (profile::LayerSizeProfile& size : layer.sizes) {
      size.keeping_forward = profile::Exactly(3e-3);
      size.kept_backward = profile::Exactly(5e-3);
    }
  }
  EXPECT_NEAR(Kept(command::TaskKind::kForward, {1, 2}), 6e-3, 1e-9);
  EXPECT_NEAR(Kept(command::TaskKind::kBackward, {1, 2}), 10e-3, 1e-9);
}

TEST_F(ProfiledCostsTest, OtherMicrobatchSizesAreInterpolated) {
  EXPECT_NEAR(Compute(0, command::TaskKind::kForward, {1, 1}, 2), 4.5e-3, 1e-9);
  EXPECT_NEAR(Compute(0, command::TaskKind::kForward, {1, 1}, 3), 6.5e-3, 1e-9);
  EXPECT_NEAR(Compute(0, command::TaskKind::kForward, {1, 1}, 8), 16.5e-3, 1e-9);
  // Of several microbatches at once: what a forward of that size takes, layer by layer.
  for (int64_t samples : {2, 3}) {
    EXPECT_NEAR(Compute(0, command::TaskKind::kForward, {0, 2}, samples),
                Compute(0, command::TaskKind::kForward, {0, 0}, samples) +
                    2 * Compute(0, command::TaskKind::kForward, {1, 1}, samples),
                1e-9);
  }
  EXPECT_GT(Compute(0, command::TaskKind::kBackward, {1, 2}, 2),
            Compute(0, command::TaskKind::kBackward, {1, 2}));
}

TEST_F(ProfiledCostsTest, GradientsAreZeroedFirstAndCheckedLast) {
  const double middle = Compute(0, command::TaskKind::kBackward, {1, 2});
  EXPECT_NEAR(Compute(0, command::TaskKind::kBackward, {1, 2}, 1, true) - middle, 4e-3, 1e-9);
  EXPECT_NEAR(Compute(0, command::TaskKind::kBackward, {1, 2}, 1, false, true) - middle, 2e-3,
              1e-9);
  EXPECT_NEAR(Compute(0, command::TaskKind::kForward, {1, 2}, 1, true, true), 5e-3, 1e-9);
}

TEST_F(ProfiledCostsTest, DevicesThatShareCoresAreSlowerTogether) {
  EXPECT_NEAR(Compute(1, command::TaskKind::kForward, {1, 1}), 1.5 * 2.5e-3, 1e-9);
}

// What a profile says of four devices of which three are slower while all compute.
TEST_F(FourDevicesProfiledCostsTest, DevicesTakeTurnsOnTheCoresThatTheyShare) {
  const auto cores = [&] { return ProfiledCosts(profile_, model_, plan_).Cores(); };
  for (profile::DeviceProfile& device : profile_.devices) device.together = 1;
  EXPECT_THAT(cores().devices, IsEmpty());
  for (int d : {0, 2, 3}) profile_.devices[d].together = 1.5;
  EXPECT_THAT(cores().devices, ElementsAre(0, 2, 3));
  EXPECT_EQ(cores().at_once, 2);
  EXPECT_NEAR(Compute(2, command::TaskKind::kForward, {1, 1}), 2.5e-3, 1e-9);
  EXPECT_NEAR(Compute(1, command::TaskKind::kForward, {1, 1}), 2.5e-3, 1e-9);
  // Part of it is no sharing of cores, but of something that all tasks bear all the time.
  for (int d : {0, 2, 3}) profile_.devices[d].together = 1.8;
  EXPECT_EQ(cores().at_once, 2);
  EXPECT_NEAR(Compute(2, command::TaskKind::kForward, {1, 1}), 1.2 * 2.5e-3, 1e-9);
}

TEST_F(FourDevicesProfiledCostsTest, CoresThatCopyAsFastAsTheyCanAreTheMachines) {
  profile_.compute_threads = 2;
  const auto threads = [&](const char* spec) {
    for (profile::DeviceProfile& device : profile_.devices) {
      device.together = 2;
      device.spec = spec;
    }
    const plan::CoreSharing cores = ProfiledCosts(profile_, model_, plan_).Cores();
    EXPECT_THAT(cores.devices, ElementsAre(0, 1, 2, 3));
    return cores.threads;
  };
  EXPECT_EQ(threads("sim:mem=1MiB"), 2);
  EXPECT_EQ(threads("sim:mem=1MiB,h2d=1GB/s"), 0);
  EXPECT_EQ(threads("cuda:0,mem=64MiB"), 0);
}

TEST_F(ProfiledCostsTest, TransfersTakeLatencyAndBytesOfTheirLink) {
  profile_.devices[1].d2h.latency = profile::Exactly(2e-3);
  profile_.devices[1].p2p->together = profile::Exactly(1e8);
  EXPECT_NEAR(Copy(command::LaneKind::kH2DBulk, 500'000), 2e-3,
              1e-9);  // 5e8 a second, all together
  EXPECT_NEAR(Copy(command::LaneKind::kH2DStream, 0), 1e-3, 1e-9);
  EXPECT_NEAR(Copy(command::LaneKind::kD2H, 500'000), 3e-3, 1e-9);
  EXPECT_NEAR(Copy(command::LaneKind::kP2P, 500'000), 6e-3, 1e-9);
}

TEST_F(OneDeviceProfiledCostsTest, OneDeviceHasItsLinkToItself) {
  command::Transfer transfer;
  transfer.size = Bytes(800'000);
  EXPECT_NEAR(Seconds({command::LaneKind::kH2DBulk, 0}, transfer), 2e-3,
              1e-9);  // 8e8, both directions
  profile_.devices[0].together = 3;
  EXPECT_NEAR(Compute(0, command::TaskKind::kForward, {0, 0}), 1.5e-3, 1e-9);
}

TEST_F(ProfiledCostsTest, WithoutAProfileHostTasksTakeTheirBytesAtTheGivenRate) {
  command::HostTask task;
  task.kind = command::HostTaskKind::kUpdate;
  task.block = 1;
  task.gradient_records = {0};
  command::Command command;
  command.header.lane = command::LaneTable(2).IndexOf({command::LaneKind::kHostCompute, 0});
  command.body = task;
  const auto seconds = [&](const char* devices) {
    return AnalyticCosts(model_, plan_, *plan::ParseDevices(devices)).Duration(command).seconds();
  };
  const double bytes = static_cast<double>(model_.blocks[1].weight_bytes.count());
  EXPECT_NEAR(seconds("sim:mem=1MiB sim:mem=1MiB,host=1MB/s"), 20e-6 + 7 * bytes / 1e6, 1e-9);
  EXPECT_NEAR(seconds("sim*2:mem=1MiB"), 20e-6 + 7 * bytes / 4e9, 1e-9);
  plan_.optimizer_moments = 0;
  EXPECT_NEAR(seconds("sim*2:mem=1MiB"), 20e-6 + 3 * bytes / 4e9, 1e-9);
}

TEST_F(ProfiledCostsTest, ALayerThatAlwaysRecomputesGainsNothingByKeeping) {
  const std::vector<plan::DeviceSpec> devices = *plan::ParseDevices("sim*2:mem=1MiB,flops=1M");
  const auto backward = [&](std::optional<Bytes> kept) {
    command::ComputeTask task;
    task.kind = command::TaskKind::kBackward;
    task.layers = {1, 2};
    task.samples = 1;
    task.kept = kept;
    command::Command command;
    command.header.lane = command::LaneTable(2).IndexOf({command::LaneKind::kCompute, 0});
    command.body = task;
    return AnalyticCosts(model_, plan_, devices).Duration(command).seconds();
  };
  const double forward = model::ForwardFlops(model_, 1, 1) / 1e6;
  EXPECT_NEAR(backward(std::nullopt), 20e-6 + 6 * forward, 1e-6);
  EXPECT_NEAR(backward(Bytes()), 20e-6 + 4 * forward, 1e-6);
  model_.costs[model_.layers[1].cost].recompute = model::Recompute::kAlways;
  EXPECT_NEAR(backward(Bytes()), 20e-6 + 6 * forward, 1e-6);
  profile::LayerSizeProfile size;
  size.forward = profile::Exactly(1e-3);
  size.backward = profile::Exactly(3e-3);
  profile::NoteRecompute(model_, 1, size);
  EXPECT_EQ(size.keeping_forward, size.forward);
  EXPECT_EQ(size.kept_backward, size.backward);
}

TEST_F(ProfiledCostsTest, HostTasksTakeAFixedPartAndTheirBytes) {
  const double bytes = static_cast<double>(model_.blocks[1].weight_bytes.count());
  EXPECT_NEAR(Host(command::HostTaskKind::kUpdate, 1), kTask + 7 * bytes / 4e9, 1e-9);
  EXPECT_NEAR(Host(command::HostTaskKind::kNorm, 1), kTask + bytes / 8e9, 1e-9);
  EXPECT_NEAR(Host(command::HostTaskKind::kStepScalars), kTask, 1e-9);
  EXPECT_NEAR(Host(command::HostTaskKind::kClip), kTask, 1e-9);
  EXPECT_NEAR(Host(command::HostTaskKind::kLoadBatch), kTask + 2 * 256 / 1e9, 1e-9);
  plan_.optimizer_moments = 0;
  EXPECT_NEAR(Host(command::HostTaskKind::kUpdate, 1), kTask + 3 * bytes / 4e9, 1e-9);
}

TEST_F(ProfiledCostsTest, ATiedBlockReadsTwoGradients) {
  const model::ModelSpec tied = SmallModel(1, /*tied=*/true);
  EXPECT_EQ(profile::UpdateBytes(tied.blocks[0], 2), tied.blocks[0].weight_bytes * 8);
  EXPECT_EQ(profile::UpdateBytes(tied.blocks[1], 2), tied.blocks[1].weight_bytes * 7);
}

TEST_F(ProfiledCostsTest, SlowerLayersMakeASlowerSimulatedStep) {
  const auto finish = [&] {
    const sim::SimResult result =
        sim::Simulate(model_, plan_, ProfiledCosts(profile_, model_, plan_), sim::SimOptions());
    EXPECT_TRUE(result.status.ok()) << result.status;
    return result.finished.seconds();
  };
  const double before = finish();
  for (profile::LayerProfile& layer : profile_.devices[0].layers) {
    for (profile::LayerSizeProfile& size : layer.sizes) size.backward.median *= 4;
  }
  EXPECT_GT(finish(), before * 1.5);
}

// The planner weighs every candidate by the costs it is given.
TEST(PlanWithProfileTest, ThePlannerUsesIt) {
  const model::ModelSpec model = SmallModel(6);
  job::JobSpec job;
  job.sequence_length = 4;
  job.global_batch_size = 4;
  job.micro_batch_size = 1;
  plan::MachineSpec machine;
  machine.devices = *plan::ParseDevices("sim*2:mem=16MiB");
  auto profile = std::make_shared<profile::Profile>(
      testing_support::SampleProfile(model, job, machine.devices));
  int made = 0;
  const CostFactory inner = ProfiledCostFactory(profile, model);
  planner::PlannerOptions options;
  options.search = testing_support::kQuickSearch;
  options.costs = [&](const plan::Plan& candidate) {
    ++made;
    return inner(candidate);
  };
  const absl::StatusOr<planner::PlanResult> plan = planner::MakePlan(model, job, machine, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_GT(made, 0);
}

}  // namespace
}  // namespace harmony::dispatch
