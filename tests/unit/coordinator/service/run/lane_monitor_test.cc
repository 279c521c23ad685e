#include "coordinator/service/run/lane_monitor.h"

#include <gtest/gtest.h>

namespace harmony::service {
namespace {

constexpr int kWeights = static_cast<int>(command::TrafficClass::kWeights);

command::Command Load(uint64_t value, int64_t step, int64_t bytes) {
  command::Command command;
  command.header.lane =
      static_cast<uint32_t>(command::LaneTable(1).IndexOf({command::LaneKind::kH2DBulk, 0}));
  command.header.signal_value = value;
  command.header.step = step;
  command::Transfer transfer;
  transfer.destination.device = 0;
  transfer.size = Bytes(bytes);
  command.body = transfer;
  return command;
}

TEST(LaneMonitorTest, CountsBytesOfEachStepOnce) {
  LaneMonitor monitor(1, 10);
  const int lane = command::LaneTable(1).IndexOf({command::LaneKind::kH2DBulk, 0});
  monitor.BeginGeneration(1, Nanos(0));
  monitor.OnIssued(Load(1, 0, 100), Nanos(), Nanos(0));
  monitor.OnIssued(Load(2, 0, 10), Nanos(), Nanos(0));
  monitor.OnIssued(Load(3, 1, 1), Nanos(), Nanos(0));
  monitor.OnProgress(lane, 1, {}, Nanos(5));
  EXPECT_EQ(monitor.total()[kWeights], 100);
  // The step is complete, so its second copy is, whether reported or not.
  EXPECT_EQ(monitor.TakeStep(0)[kWeights], 110);
  monitor.OnProgress(lane, 3, {}, Nanos(9));
  EXPECT_EQ(monitor.total()[kWeights], 111);
  EXPECT_EQ(monitor.TakeStep(1)[kWeights], 1);
}

TEST(LaneMonitorTest, KnowsHowLongTheNextCommandWasNotThere) {
  LaneMonitor monitor(1, 10);
  const int lane = command::LaneTable(1).IndexOf({command::LaneKind::kH2DBulk, 0});
  monitor.BeginGeneration(1, Nanos(0));
  monitor.OnIssued(Load(1, 0, 1), Nanos(), Nanos(10));
  monitor.OnProgress(lane, 1, {{1, Nanos(11), Nanos(12), Nanos(15)}}, Nanos(18));
  monitor.OnIssued(Load(2, 0, 1), Nanos(), Nanos(22));
  monitor.OnIssued(Load(3, 0, 1), Nanos(), Nanos(22));
  // The second came late and then waited for its inputs; the third was there.
  monitor.OnProgress(lane, 3,
                     {{2, Nanos(25), Nanos(30), Nanos(31)}, {3, Nanos(25), Nanos(32), Nanos(33)}},
                     Nanos(40));
  EXPECT_EQ(monitor.Usage(lane, Nanos(40)).starved, Nanos(10));
  ASSERT_EQ(monitor.Timeline(lane).size(), 3u);
  EXPECT_EQ(monitor.Timeline(lane)[0].command_wait, Nanos(0));
  EXPECT_EQ(monitor.Timeline(lane)[1].wait, Nanos(15));
  EXPECT_EQ(monitor.Timeline(lane)[1].command_wait, Nanos(10));
  EXPECT_EQ(monitor.Timeline(lane)[2].command_wait, Nanos(0));
}

// Reported in one message, however late, steps have taken what their updates say.
TEST(LaneMonitorTest, AStepEndsWithItsLastUpdate) {
  LaneMonitor monitor(1, 10);
  const int lane = command::LaneTable(1).IndexOf({command::LaneKind::kHostCompute, 0});
  monitor.BeginGeneration(1, Nanos(0));
  for (uint64_t value = 1; value <= 4; ++value) {
    command::Command command;
    command.header.lane = static_cast<uint32_t>(lane);
    command.header.signal_value = value;
    command.header.step = value <= 2 ? 7 : 8;
    command::HostTask update;
    update.kind = command::HostTaskKind::kUpdate;
    command.body = update;
    monitor.OnIssued(command, Nanos(), Nanos(0));
  }
  EXPECT_EQ(monitor.EndOfStep(7), std::nullopt);
  const auto at = [](uint64_t value, int64_t end) {
    return ReportedTiming{value, Nanos(1), Nanos(end - 2), Nanos(end)};
  };
  monitor.OnProgress(lane, 4, {at(1, 10), at(2, 20), at(3, 30), at(4, 40)}, Nanos(99));
  EXPECT_EQ(monitor.EndOfStep(7), Nanos(20));
  EXPECT_EQ(monitor.EndOfStep(8), Nanos(40));
  EXPECT_EQ(monitor.EndOfStep(9), std::nullopt);
}

TEST(LaneMonitorTest, AStepIsWholeOnceItsLastCommandIsReported) {
  LaneMonitor monitor(1, 10);
  const int lane = command::LaneTable(1).IndexOf({command::LaneKind::kH2DBulk, 0});
  monitor.BeginGeneration(1, Nanos(0));
  EXPECT_GT(monitor.FirstOutstandingStep(), 1000);
  monitor.OnIssued(Load(1, 4, 1), Nanos(), Nanos(0));
  monitor.OnIssued(Load(2, 5, 1), Nanos(), Nanos(0));
  EXPECT_EQ(monitor.FirstOutstandingStep(), 4);
  monitor.OnProgress(lane, 1, {}, Nanos(5));
  EXPECT_EQ(monitor.FirstOutstandingStep(), 5);
}

TEST(LaneMonitorTest, WhatANewGenerationDropsIsNotCounted) {
  LaneMonitor monitor(1, 10);
  monitor.BeginGeneration(1, Nanos(0));
  monitor.OnIssued(Load(1, 0, 100), Nanos(), Nanos(0));
  monitor.BeginGeneration(2, Nanos(1));
  monitor.OnIssued(Load(1, 0, 100), Nanos(), Nanos(1));
  EXPECT_EQ(monitor.TakeStep(0)[kWeights], 100);
}

TEST(LaneMonitorTest, TellsBusyFromOutstandingAndKeepsTheTimeline) {
  LaneMonitor monitor(1, 2);
  const int lane = command::LaneTable(1).IndexOf({command::LaneKind::kH2DBulk, 0});
  monitor.BeginGeneration(1, Nanos(0));
  for (uint64_t value = 1; value <= 3; ++value)
    monitor.OnIssued(Load(value, 0, 1), Nanos(), Nanos(10));
  EXPECT_EQ(monitor.Usage(lane, Nanos(30)).outstanding, Nanos(20));
  monitor.OnProgress(lane, 3,
                     {{1, Nanos(11), Nanos(12), Nanos(15)},
                      {2, Nanos(11), Nanos(15), Nanos(16)},
                      {3, Nanos(11), Nanos(20), Nanos(30)}},
                     Nanos(40));
  const LaneUsage usage = monitor.Usage(lane, Nanos(100));
  EXPECT_EQ(usage.busy, Nanos(14));
  EXPECT_EQ(usage.outstanding, Nanos(30));
  EXPECT_EQ(usage.starved, Nanos(0));
  EXPECT_EQ(monitor.Head(lane), nullptr);
  ASSERT_EQ(monitor.Timeline(lane).size(), 2u);
  EXPECT_EQ(monitor.first_whole_step(), 1) << "a command of step 0 was dropped";
  EXPECT_EQ(monitor.Timeline(lane)[1].wait, Nanos(4));
  plan::Plan plan;
  plan.num_microbatches = 8;
  EXPECT_EQ(Describe(monitor.Timeline(lane)[1].label, plan), "weights 1 B, host to device 0");
  command::Command forward;
  command::ComputeTask task;
  task.layers = {3, 5};
  task.microbatch = 1;
  task.samples = 2;
  forward.body = task;
  EXPECT_EQ(Describe(LabelOf(forward), plan), "forward layers 3-5, microbatches 3-4 of 8");
}

}  // namespace
}  // namespace harmony::service
