#include "coordinator/service/replan/replan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/dispatch/costs/profiled_costs.h"
#include "coordinator/service/replan/measured_scales.h"
#include "tests/sim/simulator/simulation.h"
#include "tests/unit/coordinator/dispatch/small_case.h"

namespace harmony::service {
namespace {

using ::testing::HasSubstr;

// Runs steps of a plan on a lane monitor: every command takes what `real` says.
class FakeRun {
 public:
  FakeRun(const model::ModelSpec& model, const plan::Plan& plan,
          const dispatch::CostModel& modelled, const dispatch::CostModel& real)
      : monitor_(static_cast<int>(plan.devices.size()), 10'000) {
    sim::SimOptions options;
    options.end_step = 4;
    options.keep_timeline = true;
    sim::SimResult result = sim::Simulate(model, plan, real, options);
    EXPECT_TRUE(result.status.ok()) << result.status;
    monitor_.BeginGeneration(1, Nanos(1));
    for (const sim::ExecutedCommand& entry : result.timeline) {
      const command::CommandHeader& header = entry.command.header;
      monitor_.OnIssued(entry.command, modelled.Duration(entry.command), Nanos(1));
      const ReportedTiming timing{header.signal_value, Nanos(1), entry.begin, entry.end};
      monitor_.OnProgress(entry.lane, header.signal_value, {timing}, Nanos(1));
    }
  }
  const LaneMonitor& monitor() const { return monitor_; }

 private:
  LaneMonitor monitor_;
};

class ReplanTest : public ::testing::Test {
 protected:
  ReplanTest() : model_(dispatch::SmallModel(4)), plan_(dispatch::SmallPlan(model_, 2)) {
    machine_.devices =
        *plan::ParseDevices("sim*2:mem=8MiB,flops=10M,h2d=1MB/s,d2h=1MB/s,p2p=1MB/s");
    machine_.host_memory = MiB(64);
    job_.sequence_length = plan_.sequence_length;
    job_.global_batch_size = plan_.global_batch();
    limits_.arena = machine_.host_memory;
    monitor_.BeginGeneration(1, Nanos(1));
  }
  std::unique_ptr<const dispatch::ScaledCosts> Costs(const dispatch::CostScales& scales) const {
    return dispatch::MakeCosts(nullptr, scales, model_, plan_, machine_.devices);
  }

  static command::ComputeTask TaskOf(command::TaskKind kind) {
    command::ComputeTask task;
    task.kind = kind;
    return task;
  }
  // Of step 1, 10 ms as modelled; in milliseconds.
  void Ran(decltype(command::Command::body) body, int device, uint64_t value, int64_t start,
           int64_t end, command::LaneKind kind = command::LaneKind::kCompute) {
    command::Command command;
    const int lane = monitor_.table().IndexOf({kind, device});
    command.header.lane = static_cast<uint32_t>(lane);
    command.header.signal_value = value;
    command.header.step = 1;
    command.body = std::move(body);
    monitor_.OnIssued(command, Millis(10), Nanos(1));
    monitor_.OnProgress(lane, value, {{value, Nanos(1), Millis(start), Millis(end)}}, Nanos(1));
  }

  const model::ModelSpec model_;
  const plan::Plan plan_;
  plan::MachineSpec machine_;
  job::JobSpec job_;
  HostLimits limits_;
  LaneMonitor monitor_{2, 100};
};

TEST_F(ReplanTest, WhatTookLongerIsFoundByDeviceAndKind) {
  dispatch::CostScales real;
  real.devices = {{2, 3, 4, 5, 6}, {1.5, 0.5, 0.25, 7, 1}};
  real.updates = 8;
  real.data = 9;
  const auto slow = Costs(real);
  const FakeRun run(model_, plan_, slow->base(), *slow);
  const dispatch::CostScales found = ScalesOf(run.monitor(), plan_, {}, 1, 3);
  ASSERT_EQ(found.devices.size(), 2u);
  for (size_t d = 0; d < 2; ++d) {
    EXPECT_NEAR(found.devices[d].forward, real.devices[d].forward, 0.02);
    EXPECT_NEAR(found.devices[d].backward, real.devices[d].backward, 0.02);
    // Two lanes share the link in; still each copy counts what it took alone.
    EXPECT_NEAR(found.devices[d].h2d, real.devices[d].h2d, 0.02);
    EXPECT_NEAR(found.devices[d].d2h, real.devices[d].d2h, 0.02);
    EXPECT_NEAR(found.devices[d].p2p, real.devices[d].p2p, 0.02);
  }
  EXPECT_NEAR(found.updates, 8, 0.02);
  EXPECT_NEAR(found.data, 9, 0.02);
}

// A device that stands still until gradients have left it is no slower for that.
TEST_F(ReplanTest, TasksThatMayWaitOnTheirWayDoNotCount) {
  command::ComputeTask task = TaskOf(command::TaskKind::kBackward);
  Ran(task, 0, 1, 100, 112);
  task.gradient_waits = {{3, 1}};
  Ran(task, 0, 2, 112, 150);
  EXPECT_NEAR(ScalesOf(monitor_, plan_, {}, 1, 2).devices[0].backward, 1.2, 1e-6);
}

// Two devices on one core: each task took twice what it takes alone while the other one ran too.
TEST_F(ReplanTest, TasksCountForTheirPartOfASharedCore) {
  const command::ComputeTask task = TaskOf(command::TaskKind::kForward);
  Ran(task, 0, 1, 100, 115);  // alone until 105, then with the other
  Ran(task, 1, 1, 105, 120);  // alone from 115
  const dispatch::CostScales found = ScalesOf(monitor_, plan_, {{0, 1}, 1}, 1, 2);
  EXPECT_NEAR(found.devices[0].forward, 1, 1e-6);
  EXPECT_NEAR(found.devices[1].forward, 1, 1e-6);
  EXPECT_NEAR(ScalesOf(monitor_, plan_, {}, 1, 2).devices[0].forward, 1.5, 1e-6);
}

// The core copied for two thirds of the time, and was divided equally then.
TEST_F(ReplanTest, TasksAndCopiesCountForTheirPartsOfACore) {
  const command::ComputeTask task = TaskOf(command::TaskKind::kForward);
  Ran(task, 0, 1, 100, 115);
  Ran(command::Transfer(), 0, 1, 105, 115, command::LaneKind::kD2H);
  const plan::CoreSharing cores{.devices = {0, 1}, .at_once = 1, .threads = 1};
  const dispatch::CostScales found = ScalesOf(monitor_, plan_, cores, 1, 2);
  EXPECT_NEAR(found.devices[0].forward, 1, 1e-6);
  EXPECT_NEAR(found.devices[0].d2h, 0.5, 1e-6);
  const dispatch::CostScales apart = ScalesOf(monitor_, plan_, {{0, 1}, 1}, 1, 2);
  EXPECT_NEAR(apart.devices[0].forward, 1.5, 1e-6);
  EXPECT_NEAR(apart.devices[0].d2h, 1, 1e-6);
}

TEST_F(ReplanTest, AnIdleDeviceIsTakenForLikeItsFellows) {
  plan::Plan alone = plan_;
  for (auto* groups : {&alone.forward_groups, &alone.backward_groups}) {
    for (plan::LayerGroup& group : *groups) group.devices = 0;
  }
  dispatch::CostScales real;
  real.devices = {{2, 3, 4, 5, 1}};
  const auto slow = dispatch::MakeCosts(nullptr, real, model_, alone, machine_.devices);
  const FakeRun run(model_, alone, slow->base(), *slow);
  const dispatch::CostScales found = ScalesOf(run.monitor(), alone, {}, 1, 3);
  EXPECT_NEAR(found.devices[1].forward, 2, 0.02);
  EXPECT_NEAR(found.devices[1].h2d, 4, 0.02);
  EXPECT_EQ(found.devices[1].p2p, 1);
}

TEST_F(ReplanTest, AFasterPlanIsFoundWhereADeviceIsSlowerThanModelled) {
  ReplanRequest request{{job_, "", model_, plan_}, nullptr, {}, machine_, limits_};
  request.scales.devices = {{1, 1, 1, 1, 1}, {40, 40, 40, 40, 40}};
  const ReplanAnswer answer = SearchAgain(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  ASSERT_TRUE(answer.then.has_value());
  EXPECT_GT(answer.gain(), 0.3);
  EXPECT_EQ(answer.plan.microbatch_size, plan_.microbatch_size);
  EXPECT_EQ(answer.plan.num_microbatches, plan_.num_microbatches);
  // Searched from that plan, by the same times, there is nothing more to gain.
  request.plan = answer.plan;
  const ReplanAnswer again = SearchAgain(request);
  ASSERT_TRUE(again.status.ok()) << again.status;
  EXPECT_FALSE(again.then.has_value());
  EXPECT_NEAR(again.now->step_seconds, answer.then->step_seconds, 0.01 * answer.then->step_seconds);
}

TEST_F(ReplanTest, AChangeMustPayOff) {
  ReplanAnswer answer;
  answer.now.emplace().step_seconds = 1;
  answer.then.emplace().step_seconds = 0.9;
  EXPECT_FALSE(PaysOff(model_, answer, 5));
  EXPECT_TRUE(PaysOff(model_, answer, 50));
}

TEST(ReplanPaceTest, EachChangeDoublesTheWait) {
  ReplanState state;
  EXPECT_EQ(NextSearch(state), 0);
  state.step = 5;
  EXPECT_EQ(NextSearch(state), 55);
  CountChange(7, 2.0, &state);
  EXPECT_EQ(NextSearch(state), 107);
  EXPECT_THAT(JudgeChange(1.0, &state), HasSubstr("shorter since the change: 1 s"));
  EXPECT_EQ(NextSearch(state), 107);
  CountChange(200, 1.0, &state);
  EXPECT_EQ(NextSearch(state), 400);
  for (int i = 0; i < 100; ++i) CountChange(200, 1.0, &state);
  EXPECT_GT(NextSearch(state), 10'000'000);
}

TEST(ReplanPaceTest, AChangeThatSavedNothingIsFollowedByNoneForLong) {
  ReplanState state;
  CountChange(100, 1.0, &state);
  EXPECT_THAT(JudgeChange(0.98, &state), HasSubstr("no shorter: 0.98 s in the median of 20, 1 s "
                                                   "before (-2%); nothing is searched before step "
                                                   "1100"));
  EXPECT_EQ(state.seconds_before, 0) << "it is judged once";
  EXPECT_EQ(NextSearch(state), 1100);
  CountChange(1200, 1.0, &state);
  EXPECT_EQ(NextSearch(state), 1400) << "a new change, a new judgement";
}

// The steps that a changing machine costs: a search finds another plan whenever it is asked.
TEST(ReplanPaceTest, ChangesInVainAreFew) {
  ReplanState state;
  for (int64_t step = 5; step < 10'000; ++step) {
    if (step >= NextSearch(state)) CountChange(step, 1.0, &state);
    if (state.seconds_before > 0 && step > state.changed_at + kStepsToJudge) JudgeChange(1, &state);
  }
  EXPECT_LE(state.changes, 4);
}

TEST_F(ReplanTest, ItsStateRoundTrips) {
  ReplanState state{17, 3, 12, 0.25, true, {}};
  state.scales.devices = {{2, 3, 4, 5, 1.0 / 3}, {}};
  state.scales.updates = 0.1;
  const auto read = ReplanStateFromText(ReplanStateToText(state), "job-1");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->step, 17);
  EXPECT_EQ(read->changes, 3);
  EXPECT_EQ(read->changed_at, 12);
  EXPECT_EQ(read->seconds_before, 0.25);
  EXPECT_TRUE(read->in_vain);
  EXPECT_EQ(read->scales, state.scales);
  EXPECT_EQ(ReplanStateFromText("", "job-1")->step, -1);
  EXPECT_FALSE(ReplanStateFromText("{", "job-1").ok());
}

}  // namespace
}  // namespace harmony::service
