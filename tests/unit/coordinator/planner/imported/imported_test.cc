// An imported profile in the hands of our planner. The layers are an excerpt, rounded, of the
// profile of GPT-2 XL in the results of the published planner (github.com/msr-fiddle/harmony):
// embedding, blocks, norm, projection to the vocabulary, loss.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "coordinator/planner/device_need.h"
#include "coordinator/planner/imported/imported_model.h"
#include "coordinator/planner/imported/imported_search.h"
#include "coordinator/planner/imported/listed_plan.h"
#include "coordinator/planner/imported/long_step.h"
#include "coordinator/planner/imported/published_packs.h"
#include "coordinator/planner/imported/seed_groups.h"
#include "coordinator/planner/paper/event_simulator.h"
#include "coordinator/planner/plan_builder.h"
#include "coordinator/sim/simulation.h"

namespace harmony {
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

void Add(const Row& row, paper::LayerProfile* profile) {
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

paper::LayerProfile Excerpt() {
  paper::LayerProfile profile;
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

paper::Machine TwoGpus(int64_t memory) {
  paper::Machine machine;
  machine.gpus = 2;
  machine.memory_bytes = memory;
  return machine;
}

constexpr int kLoss = kBlocks + 3;

// Forward 0-3 and 4-6, backward 0-3, 4-6 and the rest.
paper::Schedule Listed(int64_t u_fwd, int64_t u_bwd) {
  return {u_fwd, u_bwd, {{0, 3}, {4, 6}}, {{0, 3}, {4, 6}, {7, kLoss}}};
}

TEST(ImportedModelTest, HasTheLayersOfTheProfile) {
  const auto imported = ImportModel(Excerpt(), TwoGpus(1 << 30), 2, 4);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const ModelSpec& model = imported->model;
  ASSERT_EQ(model.num_layers(), kLoss + 1);
  EXPECT_EQ(model.blocks[1].size(), Bytes(122963200 + 4194304));
  EXPECT_EQ(model.blocks[kLoss].size(), Bytes(64));  // it has none of its own
  EXPECT_EQ(BoundaryBytes(model, 1, 2, imported->job.sequence_length), Bytes(2 * 6553600));
  EXPECT_EQ(BoundaryBytes(model, kLoss, 1, imported->job.sequence_length), Bytes(205852672));
  EXPECT_EQ(imported->job.sequence_length * 4, 8192);
}

TEST(ImportedModelTest, CountsWorkspaceFromThePeaks) {
  const auto imported = ImportModel(Excerpt(), TwoGpus(1 << 30), 2, 8);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const ModelSpec& model = imported->model;
  const int64_t in = 6553600, block = 122963200 + 4194304;
  const int64_t forward = 494504960 - block - 2 * in, backward = 819443712 - 2 * block - 3 * in;
  EXPECT_EQ(ForwardWorkspaceBytes(model, {1, 1}, 1, 1), Bytes(forward));
  // The tensors between layers lie there, too: before and behind the middle one.
  EXPECT_EQ(ForwardWorkspaceBytes(model, {1, 3}, 1, 1), Bytes(forward + 2 * in));
  EXPECT_EQ(BackwardWorkspaceBytes(model, {1, 1}, 1, 1), Bytes(backward));
  EXPECT_EQ(BackwardWorkspaceBytes(model, {1, 3}, 1, 1), Bytes(3 * backward + 4 * in));
  // Not measured: fits nothing.
  EXPECT_GT(ForwardWorkspaceBytes(model, {1, 1}, 8, 1), GiB(1 << 20));
}

TEST(ImportedModelTest, TakesTheProfilesTimesAndLinks) {
  const paper::LayerProfile profile = Excerpt();
  const paper::Machine machine = TwoGpus(1 << 30);
  const auto imported = ImportModel(profile, machine, 2, 4);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const LaneTable lanes(2);
  const auto costs = imported->costs(Plan());
  Command command;
  ComputeTask task;
  task.layers = {1, 2};
  task.samples = 2;
  command.body = task;
  EXPECT_EQ(costs->Duration(command), Nanos::FromSeconds(2 * 0.02642));
  task.kind = TaskKind::kForwardBackward;
  command.body = task;
  EXPECT_EQ(costs->Duration(command), Nanos::FromSeconds(2 * 0.07375));
  Transfer copy;
  copy.size = Bytes(1 << 30);
  command.body = copy;
  command.header.lane = static_cast<uint32_t>(lanes.IndexOf({LaneKind::kD2H, 1}));
  EXPECT_NEAR(costs->Duration(command).seconds(), 2 / 11.5, 1e-8);
  command.header.lane = static_cast<uint32_t>(lanes.IndexOf({LaneKind::kP2P, 1}));
  EXPECT_NEAR(costs->Duration(command).seconds(), 1 / 8.2, 1e-8);
  HostTask update;
  update.kind = HostTaskKind::kUpdate;
  update.block = 0;
  command.body = update;
  EXPECT_EQ(costs->Duration(command), Nanos::FromSeconds(0.11106));
}

TEST(ImportedModelTest, RefusesWhatCannotBe) {
  const auto error = [](const paper::LayerProfile& profile, int64_t minibatch) {
    return std::string(ImportModel(profile, TwoGpus(1 << 30), 2, minibatch).status().message());
  };
  EXPECT_THAT(error(Excerpt(), 0), HasSubstr("minibatch is 0"));
  paper::LayerProfile profile = Excerpt();
  profile.forward.time_s[2][1] = -1;
  EXPECT_THAT(error(profile, 4), HasSubstr("fwd.time_s[2][1] is -1"));
  profile = Excerpt();
  profile.backward.microbatch = {2, 3, 4};
  EXPECT_THAT(error(profile, 7), HasSubstr("no divisor"));
}

TEST(ListedPlanTest, WrapsPacksAroundTheGpus) {
  const auto judged =
      JudgeSchedule(Excerpt(), TwoGpus(int64_t{9} << 30), paper::Mode::kPipeline, 8, Listed(4, 2));
  ASSERT_TRUE(judged.ok()) << judged.status();
  const Plan& plan = judged->plan;
  EXPECT_EQ(plan.microbatch_size, 2);
  EXPECT_EQ(plan.num_microbatches, 4);
  EXPECT_EQ(plan.forward_span, 2);
  std::vector<int> devices;
  for (const LayerGroup& group : plan.forward_groups) devices.push_back(group.device);
  EXPECT_THAT(devices, ElementsAre(0, 1));
  devices.clear();
  for (const LayerGroup& group : plan.backward_groups) devices.push_back(group.device);
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
    const auto judged = JudgeSchedule(Excerpt(), TwoGpus(int64_t{9} << 30), paper::Mode::kPipeline,
                                      4, Listed(u_fwd, 2));
    ASSERT_TRUE(judged.ok()) << judged.status();
    EXPECT_EQ(judged->plan.forward_span, 1);
  }
}

TEST(ListedPlanTest, IsJudgedByItsTimeAlone) {
  const paper::LayerProfile profile = Excerpt();
  const auto small =
      JudgeSchedule(profile, TwoGpus(int64_t{2} << 30), paper::Mode::kPipeline, 8, Listed(2, 2));
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_FALSE(small->fits);
  EXPECT_GT(small->plan.devices[0].memory, GiB(2));
  const auto large =
      JudgeSchedule(profile, TwoGpus(int64_t{64} << 30), paper::Mode::kPipeline, 8, Listed(2, 2));
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_TRUE(large->fits);
  EXPECT_LE(large->estimate.step, small->estimate.step);
}

TEST(ListedPlanTest, OneGpuStandsForAllInDataParallel) {
  const auto judged = JudgeSchedule(Excerpt(), TwoGpus(int64_t{9} << 30),
                                    paper::Mode::kDataParallel, 8, Listed(2, 2));
  ASSERT_TRUE(judged.ok()) << judged.status();
  EXPECT_EQ(judged->plan.devices.size(), 1u);
  EXPECT_EQ(judged->plan.global_batch(), 4);
}

TEST(PublishedPacksTest, AreSchedulesThatFit) {
  const paper::LayerProfile profile = Excerpt();
  for (int64_t gibibytes : {2, 3, 6}) {
    const paper::Machine machine = TwoGpus(gibibytes << 30);
    const auto schedules = PublishedSchedules(profile, machine, 8, 2, 1);
    ASSERT_TRUE(schedules.ok()) << schedules.status();
    EXPECT_FALSE(schedules->empty());
    for (const paper::Schedule& schedule : *schedules) {
      const absl::Status status =
          paper::CheckSchedule(profile, paper::Mode::kPipeline, 2, 8, schedule);
      EXPECT_TRUE(status.ok()) << status;
      const auto memory = paper::MaxPackMemory(profile, schedule);
      ASSERT_TRUE(memory.ok()) << memory.status();
      EXPECT_LE(std::max(memory->forward_bytes, memory->backward_bytes), machine.memory_bytes);
    }
  }
}

TEST(PublishedPacksTest, FollowItsWaysToPack) {
  const auto schedules = PublishedSchedules(Excerpt(), TwoGpus(int64_t{100} << 30), 8, 1, 1);
  ASSERT_TRUE(schedules.ok()) << schedules.status();
  const auto has = [&](const std::vector<paper::Pack>& forward,
                       const std::vector<paper::Pack>& backward) {
    return std::find(schedules->begin(), schedules->end(),
                     paper::Schedule{1, 1, forward, backward}) != schedules->end();
  };
  EXPECT_TRUE(has({}, {{0, kLoss}}));  // the fewest that fit
  EXPECT_TRUE(has({{0, 2}, {3, 5}, {6, 8}}, {{0, 2}, {3, 5}, {6, 8}, {9, kLoss}}));  // by hand
  // No room for all in one: cut before the layer that reaches half of the time.
  const auto full = PublishedSchedules(Excerpt(), TwoGpus(4'300'000'000), 8, 1, 1);
  ASSERT_TRUE(full.ok()) << full.status();
  for (const paper::Schedule& schedule : *full) EXPECT_GE(schedule.backward.size(), 2u);
  EXPECT_EQ(full->front().backward, (std::vector<paper::Pack>{{0, 3}, {4, kLoss}}));
}

TEST(SeedGroupsTest, RampsGrow) {
  const std::vector<double> times(40, 0.5);
  const auto sizes = [&](int end, int count, int ramp, double taper) {
    std::vector<int> result;
    int next = 0;
    for (const LayerGroup& group : RampedGroups(times, end, count, ramp, taper)) {
      EXPECT_EQ(group.layers.first, next);
      next = group.layers.last + 1;
      result.push_back(group.layers.count());
    }
    EXPECT_EQ(next, end);
    return result;
  };
  EXPECT_THAT(sizes(40, 5, 4, 1), ElementsAre(8, 8, 8, 8, 8));
  EXPECT_THAT(sizes(40, 1, 4, 0.5), ElementsAre(40));
  const std::vector<int> ramp = sizes(36, 6, 3, 0.5);
  EXPECT_LE(ramp.size(), 6u);
  EXPECT_TRUE(std::is_sorted(ramp.begin(), ramp.end() - 1)) << testing::PrintToString(ramp);
  EXPECT_LT(ramp.front() * 3, ramp[ramp.size() - 2]);
  EXPECT_TRUE(sizes(0, 3, 2, 0.5).empty());
}

// Every layer by itself.
paper::Schedule Single(int64_t u) {
  paper::Schedule schedule;
  schedule.u_fwd = schedule.u_bwd = u;
  for (int layer = 0; layer <= kLoss; ++layer) {
    if (layer < kLoss) schedule.forward.push_back({layer, layer});
    schedule.backward.push_back({layer, layer});
  }
  return schedule;
}

// Enough microbatches that two shorter steps stand for one, and few enough to follow it, too.
TEST(LongStepTest, TakesAsLongAsTheWholeOne) {
  const paper::LayerProfile profile = Excerpt();
  const auto imported = ImportModel(profile, TwoGpus(int64_t{6} << 30), 2, 1024);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const PlanBuilder builder(imported->model, imported->job, imported->machine, 1);
  for (UpdateMode update : {UpdateMode::kEager, UpdateMode::kDeferred}) {
    Plan plan = builder.Blank();
    plan.update = update;
    SetGroups(Single(1), 2, &plan);
    StepVisits step;
    ASSERT_TRUE(builder.Complete(&plan, &step));
    const auto costs = imported->costs(plan);
    const auto whole = EvaluatePlan(imported->model, plan, *costs);
    const auto by_two = EvaluateStep(imported->model, plan, *costs);
    const auto rehearsed = RehearseStep(imported->model, plan, *costs);
    ASSERT_TRUE(whole.ok() && by_two.ok() && rehearsed.ok());
    EXPECT_LT(by_two->commands, whole->commands * 7 / 8);
    EXPECT_NEAR(by_two->step.seconds() / whole->step.seconds(), 1, 0.002);
    EXPECT_NEAR(rehearsed->step.seconds() / whole->step.seconds(), 1, 0.002);
    for (size_t lane = 0; lane < whole->lanes.size(); ++lane) {
      const double bytes = static_cast<double>(whole->lanes[lane].bytes);
      EXPECT_NEAR(static_cast<double>(by_two->lanes[lane].bytes), bytes, bytes * 0.01) << lane;
    }
  }
}

TEST(LongStepTest, ShortStepsAreFollowed) {
  Plan plan;
  plan.num_microbatches = 100;
  plan.devices.resize(4);
  plan.backward_groups.resize(10);
  EXPECT_FALSE(ShortStepsFor(plan, 1000));
  plan.forward_groups.resize(1);
  const auto steps = ShortStepsFor(plan, 1000);
  ASSERT_TRUE(steps);
  EXPECT_EQ(steps->fewer, 30);
  EXPECT_EQ(steps->more, 60);
  EXPECT_EQ(steps->Extend(130, 160, 100), 200);
  EXPECT_EQ(steps->Extend(130, 120, 100), 120);  // never less than the longer one
  plan.forward_span = 50;
  EXPECT_FALSE(ShortStepsFor(plan, 1000));  // no two such steps are much shorter
}

// Whatever fits by our own count, a plan is found that is not slower.
TEST(ImportedSearchTest, FindsAPlanWhereLayersAloneFit) {
  const paper::LayerProfile profile = Excerpt();
  int fitting = 0;
  for (int64_t mebibytes : {2100, 4000}) {
    for (int gpus : {1, 2, 5}) {
      paper::Machine machine = TwoGpus(mebibytes << 20);
      machine.gpus = gpus;
      const auto judged = JudgeSchedule(profile, machine, paper::Mode::kPipeline, 1, Single(1));
      ASSERT_TRUE(judged.ok()) << judged.status();
      const auto found = SearchImported(profile, machine, paper::Mode::kPipeline, 1);
      if (!judged->fits) continue;
      ++fitting;
      ASSERT_TRUE(found.ok()) << mebibytes << " MiB, " << gpus << " GPUs: " << found.status();
      EXPECT_LE(found->estimate.step, judged->estimate.step) << mebibytes << " MiB, " << gpus;
    }
  }
  EXPECT_GE(fitting, 3);
}

TEST(ImportedSearchTest, BeatsTheListedScheduleWithinTheMemory) {
  const paper::LayerProfile profile = Excerpt();
  const paper::Machine machine = TwoGpus(int64_t{6} << 30);
  const auto found = SearchImported(profile, machine, paper::Mode::kPipeline, 8);
  ASSERT_TRUE(found.ok()) << found.status();
  for (int64_t u : {1, 2, 4}) {
    const auto judged = JudgeSchedule(profile, machine, paper::Mode::kPipeline, 8, Listed(u, u));
    ASSERT_TRUE(judged.ok()) << judged.status();
    EXPECT_LE(found->estimate.step, judged->estimate.step) << "u " << u;
  }
  EXPECT_LE(found->lower_bound, found->estimate.step);
  const auto imported = ImportModel(profile, machine, machine.gpus, 8);
  ASSERT_TRUE(imported.ok()) << imported.status();
  std::vector<Bytes> resident(2), workspace(2);
  for (const GroupNeed& need : NeedOfGroups(imported->model, found->plan)) {
    resident[need.device] = std::max(resident[need.device], need.resident());
    workspace[need.device] = std::max(workspace[need.device], need.workspace);
  }
  for (int d : {0, 1}) EXPECT_LE(resident[d] + workspace[d], GiB(6)) << "GPU " << d;
  // The simulator finds every read, write and slot in order, and the same time.
  SimOptions options;
  options.end_step = 3;
  const auto costs = imported->costs(found->plan);
  const SimResult run = Simulate(imported->model, found->plan, *costs, options);
  ASSERT_TRUE(run.status.ok()) << run.status;
  const double step = (run.step_ends[2] - run.step_ends[0]).seconds() / 2;
  EXPECT_NEAR(step / found->estimate.step.seconds(), 1, 0.04);
}

TEST(ImportedSearchTest, BeatsTheListedDataParallelSchedule) {
  const paper::LayerProfile profile = Excerpt();
  const paper::Machine machine = TwoGpus(int64_t{6} << 30);
  const auto found = SearchImported(profile, machine, paper::Mode::kDataParallel, 8);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->plan.devices.size(), 1u);
  EXPECT_EQ(found->plan.global_batch(), 4);
  EXPECT_LE(found->lower_bound, found->estimate.step);
  for (int64_t u : {1, 2, 4}) {
    const auto judged =
        JudgeSchedule(profile, machine, paper::Mode::kDataParallel, 8, Listed(u, u));
    ASSERT_TRUE(judged.ok()) << judged.status();
    EXPECT_LE(found->estimate.step, judged->estimate.step) << "u " << u;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(
      SearchImported(profile, machine, paper::Mode::kDataParallel, 7).status()));
}

// So many microbatches that a plan in few groups is followed whole and one in many is not.
TEST(ImportedSearchTest, BeatsPublishedSchedulesOfManyMicrobatches) {
  const paper::LayerProfile profile = Excerpt();
  const paper::Machine machine = TwoGpus(int64_t{4} << 30);
  constexpr int64_t kMinibatch = 1200;
  const auto found = SearchImported(profile, machine, paper::Mode::kPipeline, kMinibatch);
  ASSERT_TRUE(found.ok()) << found.status();
  for (int64_t u : {1, 2}) {
    const auto schedules = PublishedSchedules(profile, machine, kMinibatch, u, u);
    ASSERT_TRUE(schedules.ok()) << schedules.status();
    const auto judged =
        JudgeSchedule(profile, machine, paper::Mode::kPipeline, kMinibatch, schedules->front());
    ASSERT_TRUE(judged.ok()) << judged.status();
    EXPECT_LE(found->estimate.step, judged->estimate.step) << "u " << u;
  }
}

TEST(ImportedSearchTest, SaysWhatDoesNotFit) {
  const auto found = SearchImported(Excerpt(), TwoGpus(1'000'000'000), paper::Mode::kPipeline, 8);
  EXPECT_TRUE(absl::IsResourceExhausted(found.status())) << found.status();
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("workspace of"));
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("for layer 8 in backward"));
}

}  // namespace
}  // namespace harmony
