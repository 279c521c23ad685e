// An imported profile in the hands of our planner. The layers are an excerpt, rounded, of the
// profile of GPT-2 XL in the results of the published planner (github.com/msr-fiddle/harmony):
// embedding, blocks, norm, projection to the vocabulary, loss.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "bench/published_planner/cost_model/event_simulator.h"
#include "bench/published_planner/ours/imported_model.h"
#include "bench/published_planner/ours/listed_plan.h"
#include "bench/published_planner/ours/profile_plan.h"
#include "common/model/model_sizes.h"
#include "coordinator/planner/fit/device_need.h"
#include "coordinator/planner/fit/plan_builder.h"
#include "tests/sim/simulator/simulation.h"

namespace harmony::published {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kBlocks = 6;

struct Row {
  int64_t weights, buffers;
  double update;
  int64_t input;
  std::vector<double> forward, backward;             // at microbatches of 1, 2 and 4
  std::vector<int64_t> forward_peak, backward_peak;  // alike
};

void Add(const Row& row, LayerProfile* profile) {
  profile->param_bytes.push_back(row.weights);
  profile->grad_bytes.push_back(row.weights);
  profile->buffer_bytes.push_back(row.buffers);
  profile->optimizer_state_bytes.push_back(2 * row.weights);
  profile->update_time_s.push_back(row.update);
  profile->input_bytes_per_sample.push_back(row.input);
  profile->forward.time_s.push_back(row.forward);
  profile->forward.peak_bytes.push_back(row.forward_peak);
  profile->backward.time_s.push_back(row.backward);
  profile->backward.peak_bytes.push_back(row.backward_peak);
}

LayerProfile Excerpt() {
  LayerProfile profile;
  profile.model = "gpt2_xl excerpt";
  profile.forward.microbatch = profile.backward.microbatch = {1, 2, 4};
  Add({328198400,
       0,
       0.11106,
       8192,
       {0.00041, 0.00059, 0.00079},
       {0.00597, 0.00619, 0.00679},
       {354429440, 374098432, 416582144},
       {670198784, 683996672, 713689600}},
      &profile);
  for (int i = 0; i < kBlocks; ++i) {
    Add({122963200,
         4194304,
         0.04228,
         6553600,
         {0.01403, 0.02642, 0.05156},
         {0.03922, 0.07375, 0.14634},
         {494504960, 856525824, 1578994688},
         {819443712, 1416353792, 2612860928}},
        &profile);
  }
  Add({12800,
       0,
       0.00036,
       6553600,
       {0.00015, 0.00022, 0.00034},
       {0.00086, 0.00106, 0.00148},
       {13128704, 26244096, 54572032},
       {26265600, 52504576, 109176832}},
      &profile);
  Add({321644800,
       0,
       0.10910,
       6553600,
       {0.01726, 0.03655, 0.07581},
       {0.06147, 0.12217, 0.24944},
       {534051328, 746457600, 1173088768},
       {1068102656, 1492915200, 2346177536}},
      &profile);
  Add({0,
       0,
       0,
       205852672,
       {0.00265, 0.00751, 0.01485},
       {0.01090, 0.02120, 0.04101},
       {411513856, 1234345984, 2469460992},
       {822809600, 2056920064, 4114609152}},
      &profile);
  profile.output_bytes_per_sample.assign(profile.input_bytes_per_sample.begin() + 1,
                                         profile.input_bytes_per_sample.end());
  profile.output_bytes_per_sample.push_back(0);
  return profile;
}

Machine TwoGpus(int64_t memory) {
  Machine machine;
  machine.gpus = 2;
  machine.memory_bytes = memory;
  return machine;
}

constexpr int kLoss = kBlocks + 3;

// Forward 0-3 and 4-6, backward 0-3, 4-6 and the rest.
Schedule Listed(int64_t u_fwd, int64_t u_bwd) {
  return {u_fwd, u_bwd, {{0, 3}, {4, 6}}, {{0, 3}, {4, 6}, {7, kLoss}}};
}

TEST(ImportedModelTest, HasTheLayersOfTheProfile) {
  const auto imported = ImportModel(Excerpt(), TwoGpus(1 << 30), 2, 4);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const model::ModelSpec& model = imported->model;
  ASSERT_EQ(model.num_layers(), kLoss + 1);
  EXPECT_EQ(model.blocks[1].weight_bytes, Bytes(122963200 + 4194304));
  EXPECT_EQ(model.blocks[kLoss].weight_bytes, Bytes(kSlotAlignment));  // it has none of its own
  EXPECT_EQ(model::BoundaryBytes(model, 1, 2), Bytes(2 * 6553600));
  EXPECT_EQ(model::BoundaryBytes(model, kLoss, 1), Bytes(205852672));
  EXPECT_EQ(imported->job.sequence_length * 4, 8192);
}

TEST(ImportedModelTest, CountsWorkspaceFromThePeaks) {
  const auto imported = ImportModel(Excerpt(), TwoGpus(1 << 30), 2, 8);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const model::ModelSpec& model = imported->model;
  const int64_t in = 6553600, block = 122963200 + 4194304;
  const int64_t forward = 494504960 - block - 2 * in, backward = 819443712 - 2 * block - 3 * in;
  EXPECT_EQ(model::WorkspaceBound(model, model::WorkspaceOf::kForward, {1, 1}, 1), Bytes(forward));
  // The tensors between layers lie there, too: before and behind the middle one.
  EXPECT_EQ(model::WorkspaceBound(model, model::WorkspaceOf::kForward, {1, 3}, 1),
            Bytes(forward + 2 * in));
  EXPECT_EQ(model::WorkspaceBound(model, model::WorkspaceOf::kBackward, {1, 1}, 1),
            Bytes(backward));
  // Each keeps from its forward what a backward has beyond one; one has its temporaries as well.
  const int64_t saved = backward - forward;
  EXPECT_EQ(model::WorkspaceBound(model, model::WorkspaceOf::kBackward, {1, 3}, 1),
            Bytes(2 * saved + backward + 3 * in));
  // By the size where that is least, for all sizes.
  EXPECT_EQ(model::KeptActivationBytes(model, {1, 2}, 2), Bytes(2 * 2 * saved + 2 * in));
  EXPECT_EQ(model::WorkspaceBound(model, model::WorkspaceOf::kKeptBackward, {1, 1}, 1),
            Bytes(forward));
  // Not measured: fits nothing.
  EXPECT_GT(model::WorkspaceBound(model, model::WorkspaceOf::kForward, {1, 1}, 8), GiB(1 << 20));
}

TEST(ImportedModelTest, TakesTheProfilesTimesAndLinks) {
  const LayerProfile profile = Excerpt();
  const Machine machine = TwoGpus(1 << 30);
  const auto imported = ImportModel(profile, machine, 2, 4);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const command::LaneTable lanes(2);
  const auto costs = imported->costs(plan::Plan());
  command::Command command;
  command::ComputeTask task;
  task.layers = {1, 2};
  task.samples = 2;
  command.body = task;
  EXPECT_EQ(costs->Duration(command), Nanos::FromSeconds(2 * 0.02642));
  task.kind = command::TaskKind::kForwardBackward;
  command.body = task;
  EXPECT_EQ(costs->Duration(command), Nanos::FromSeconds(2 * 0.07375));
  // What was measured has the recompute in it.
  task.kind = command::TaskKind::kBackward;
  task.kept = Bytes();
  command.body = task;
  EXPECT_EQ(costs->Duration(command), Nanos::FromSeconds(2 * (0.07375 - 0.02642)));
  command::Transfer copy;
  copy.size = Bytes(1 << 30);
  command.body = copy;
  command.header.lane = static_cast<uint32_t>(lanes.IndexOf({command::LaneKind::kD2H, 1}));
  EXPECT_NEAR(costs->Duration(command).seconds(), 2 / 11.5, 1e-8);
  command.header.lane = static_cast<uint32_t>(lanes.IndexOf({command::LaneKind::kP2P, 1}));
  EXPECT_NEAR(costs->Duration(command).seconds(), 1 / 8.2, 1e-8);
  command::HostTask update;
  update.kind = command::HostTaskKind::kUpdate;
  update.block = 0;
  command.body = update;
  EXPECT_EQ(costs->Duration(command), Nanos::FromSeconds(0.11106));
}

TEST(ImportedModelTest, RefusesWhatCannotBe) {
  const auto error = [](const LayerProfile& profile, int64_t minibatch) {
    return std::string(ImportModel(profile, TwoGpus(1 << 30), 2, minibatch).status().message());
  };
  EXPECT_THAT(error(Excerpt(), 0), HasSubstr("minibatch is 0"));
  LayerProfile profile = Excerpt();
  profile.forward.time_s[2][1] = -1;
  EXPECT_THAT(error(profile, 4), HasSubstr("fwd.time_s[2][1] is -1"));
  profile = Excerpt();
  profile.backward.microbatch = {2, 3, 4};
  EXPECT_THAT(error(profile, 7), HasSubstr("no divisor"));
}

TEST(ListedPlanTest, WrapsPacksAroundTheGpus) {
  const auto judged =
      JudgeSchedule(Excerpt(), TwoGpus(int64_t{9} << 30), Mode::kPipeline, 8, Listed(4, 2));
  ASSERT_TRUE(judged.ok()) << judged.status();
  const plan::Plan& plan = judged->plan;
  EXPECT_EQ(plan.microbatch_size, 2);
  EXPECT_EQ(plan.num_microbatches, 4);
  EXPECT_EQ(plan.microbatches_per_forward_task, 2);
  std::vector<int> devices;
  for (const plan::LayerGroup& group : plan.forward_groups)
    devices.push_back(group.devices.front());
  EXPECT_THAT(devices, ElementsAre(0, 1));
  devices.clear();
  for (const plan::LayerGroup& group : plan.backward_groups)
    devices.push_back(group.devices.front());
  EXPECT_THAT(devices, ElementsAre(0, 1, 0));  // tasks 4, 3 and 2
  EXPECT_TRUE(judged->fits);
  // No step is shorter than the work of the device that has most of it.
  const double device_0 =
      2 * (0.00079 + 3 * 0.05156) + 4 * (0.00106 + 0.12217 + 0.02120 + 0.00619 + 3 * 0.07375);
  EXPECT_GE(judged->estimate.step.seconds(), device_0);
  EXPECT_LT(judged->estimate.step.seconds(), 3 * device_0);
}

// Forward tasks smaller than backward ones, or of one and a half: the nearest that there are.
TEST(ListedPlanTest, TakesTheNearestForwardTasks) {
  for (int64_t u_fwd : {1, 2}) {
    const auto judged =
        JudgeSchedule(Excerpt(), TwoGpus(int64_t{9} << 30), Mode::kPipeline, 4, Listed(u_fwd, 2));
    ASSERT_TRUE(judged.ok()) << judged.status();
    EXPECT_EQ(judged->plan.microbatches_per_forward_task, 1);
  }
}

TEST(ListedPlanTest, IsJudgedByItsTimeAlone) {
  const LayerProfile profile = Excerpt();
  const auto small =
      JudgeSchedule(profile, TwoGpus(int64_t{2} << 30), Mode::kPipeline, 8, Listed(2, 2));
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_FALSE(small->fits);
  EXPECT_GT(small->plan.devices[0].memory, GiB(2));
  const auto large =
      JudgeSchedule(profile, TwoGpus(int64_t{64} << 30), Mode::kPipeline, 8, Listed(2, 2));
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_TRUE(large->fits);
  EXPECT_LE(large->estimate.step, small->estimate.step);
}

TEST(ListedPlanTest, OneGpuStandsForAllInDataParallel) {
  const auto judged =
      JudgeSchedule(Excerpt(), TwoGpus(int64_t{9} << 30), Mode::kDataParallel, 8, Listed(2, 2));
  ASSERT_TRUE(judged.ok()) << judged.status();
  EXPECT_EQ(judged->plan.devices.size(), 1u);
  EXPECT_EQ(judged->plan.global_batch(), 4);
}

// Every layer by itself.
Schedule Single(int64_t u) {
  Schedule schedule;
  schedule.u_fwd = schedule.u_bwd = u;
  for (int layer = 0; layer <= kLoss; ++layer) {
    if (layer < kLoss) schedule.forward.push_back({layer, layer});
    schedule.backward.push_back({layer, layer});
  }
  return schedule;
}

// Whatever fits by our own count, a plan is found that is not slower.
TEST(ProfilePlanTest, FindsAPlanWhereLayersAloneFit) {
  const LayerProfile profile = Excerpt();
  int fitting = 0;
  for (int64_t mebibytes : {2100, 4000}) {
    for (int gpus : {1, 3}) {
      Machine machine = TwoGpus(mebibytes << 20);
      machine.gpus = gpus;
      const auto judged = JudgeSchedule(profile, machine, Mode::kPipeline, 1, Single(1));
      ASSERT_TRUE(judged.ok()) << judged.status();
      const auto found = PlanProfile(profile, machine, Mode::kPipeline, 1);
      if (!judged->fits) continue;
      ++fitting;
      ASSERT_TRUE(found.ok()) << mebibytes << " MiB, " << gpus << " GPUs: " << found.status();
      EXPECT_LE(found->estimate.step, judged->estimate.step) << mebibytes << " MiB, " << gpus;
    }
  }
  EXPECT_GE(fitting, 3);
}

TEST(ProfilePlanTest, BeatsTheListedScheduleWithinTheMemory) {
  const LayerProfile profile = Excerpt();
  const Machine machine = TwoGpus(int64_t{6} << 30);
  const auto found = PlanProfile(profile, machine, Mode::kPipeline, 8);
  ASSERT_TRUE(found.ok()) << found.status();
  for (int64_t u : {1, 2, 4}) {
    const auto judged = JudgeSchedule(profile, machine, Mode::kPipeline, 8, Listed(u, u));
    ASSERT_TRUE(judged.ok()) << judged.status();
    EXPECT_LE(found->estimate.step, judged->estimate.step) << "u " << u;
  }
  EXPECT_LE(found->report.lower_bound, found->estimate.step);
  const auto imported = ImportModel(profile, machine, machine.gpus, 8);
  ASSERT_TRUE(imported.ok()) << imported.status();
  std::vector<Bytes> resident(2), workspace(2);
  for (const planner::GroupNeed& need : planner::NeedOfGroups(imported->model, found->plan)) {
    resident[need.device] = std::max(resident[need.device], need.resident());
    workspace[need.device] = std::max(workspace[need.device], need.workspace);
  }
  for (int d : {0, 1}) EXPECT_LE(resident[d] + workspace[d], GiB(6)) << "GPU " << d;
  // The simulator finds every read, write and slot in order, and the same time.
  sim::SimOptions options;
  options.end_step = 3;
  const auto costs = imported->costs(found->plan);
  const sim::SimResult run = Simulate(imported->model, found->plan, *costs, options);
  ASSERT_TRUE(run.status.ok()) << run.status;
  const double step = (run.step_ends[2] - run.step_ends[0]).seconds() / 2;
  EXPECT_NEAR(step / found->estimate.step.seconds(), 1, 0.04);
}

TEST(ProfilePlanTest, BeatsTheListedDataParallelSchedule) {
  const LayerProfile profile = Excerpt();
  const Machine machine = TwoGpus(int64_t{6} << 30);
  const auto found = PlanProfile(profile, machine, Mode::kDataParallel, 8);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->plan.devices.size(), 1u);
  EXPECT_EQ(found->plan.global_batch(), 4);
  EXPECT_LE(found->report.lower_bound, found->estimate.step);
  for (int64_t u : {1, 2, 4}) {
    const auto judged = JudgeSchedule(profile, machine, Mode::kDataParallel, 8, Listed(u, u));
    ASSERT_TRUE(judged.ok()) << judged.status();
    EXPECT_LE(found->estimate.step, judged->estimate.step) << "u " << u;
  }
  EXPECT_TRUE(
      absl::IsInvalidArgument(PlanProfile(profile, machine, Mode::kDataParallel, 7).status()));
}

TEST(ProfilePlanTest, SaysWhatDoesNotFit) {
  const auto found = PlanProfile(Excerpt(), TwoGpus(1'000'000'000), Mode::kPipeline, 8);
  EXPECT_TRUE(absl::IsResourceExhausted(found.status())) << found.status();
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("backward"));
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("missing"));
}

}  // namespace
}  // namespace harmony::published
