// Gradients that devices add up among themselves: plan::SumOf.

#include <algorithm>
#include <vector>

#include "coordinator/dispatch/costs/analytic_costs.h"
#include "coordinator/recovery/frontier.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator/dispatch/small_case.h"

namespace harmony::dispatch {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::Not;

constexpr uint32_t kD2HOfDevice0 = 3;

class SumsBetweenDevicesTest : public ::testing::Test {
 protected:
  SumsBetweenDevicesTest() {
    plan_.replicas = plan_.num_microbatches = 2;
    plan_.boundary_banks = 2;
    plan_.devices.assign(2, {Bytes(64 << 10), Bytes(32 << 10)});
    for (auto* groups : {&plan_.forward_groups, &plan_.backward_groups}) {
      for (plan::LayerGroup& group : *groups) group.devices = 1;
    }
    plan_.backward_groups[3].devices = {0, 1};
    Complete(1);
  }

  void Complete(int parts_of_the_last) {
    plan_.backward_groups[3].gradient_parts = parts_of_the_last;
    plan_.gradient_ring = plan::ArenaLayout::MinimalRing(model_, plan_);
    plan_.arena_dynamic = plan::ArenaLayout(model_, plan_).dynamic_bytes();
    ASSERT_EQ(plan::CheckPlan(model_, plan_), absl::OkStatus());
  }

  std::vector<command::Command> Commands() {
    const AnalyticCosts costs(model_, plan_, {});
    return CommandsOfOneStep(model_, plan_, costs);
  }

  const model::ModelSpec model_ = SmallModel(2);
  plan::Plan plan_ = SmallPlan(model_, 2);
};

TEST_F(SumsBetweenDevicesTest, TheLastTaskAddsWhatTheOtherDeviceSends) {
  int sums = 0;
  for (const command::Command& command : Commands()) {
    const auto* copy = std::get_if<command::Transfer>(&command.body);
    if (copy != nullptr && copy->source.device == 0 && copy->destination.device == 1 &&
        copy->size == model_.blocks.back().accumulator_bytes) {
      ++sums;
    }
    const auto* task = std::get_if<command::ComputeTask>(&command.body);
    if (task == nullptr || task->kind != command::TaskKind::kForwardBackward) continue;
    const bool takes = task->microbatch == 1;
    EXPECT_EQ(task->replica, takes ? 1 : 0);
    EXPECT_EQ(task->stores_gradients, takes);
    EXPECT_EQ(task->gradient_waits.size(), takes ? task->gradients.size() : 0);
    EXPECT_EQ(task->awaited, takes ? model::Awaited::kSums : model::Awaited::kBuffers);
  }
  EXPECT_GE(sums, 1);
}

// A sum waits for the last task of its group. The next group's weights, which take the same lane,
// do not wait for the sum.
TEST_F(SumsBetweenDevicesTest, WeightsArePassedOnBeforeASumThatWaits) {
  for (auto* groups : {&plan_.forward_groups, &plan_.backward_groups}) {
    for (plan::LayerGroup& group : *groups) {
      group.devices = {0, 1};
      group.gradient_parts = 1;
    }
  }
  for (plan::DevicePlan& device : plan_.devices) device.root = 1;
  plan_.pass_weights = true;
  Complete(1);
  const command::LaneTable lanes(2);
  const int compute = lanes.IndexOf({command::LaneKind::kCompute, 0});
  const int p2p = lanes.IndexOf({command::LaneKind::kP2P, 0});
  command::SemaphoreWait last_task{static_cast<uint32_t>(compute), 0};
  size_t loads = 0, passed = 0;  // for the groups up to the last; before its first sum
  for (const command::Command& command : Commands()) {
    const auto* task = std::get_if<command::ComputeTask>(&command.body);
    if (static_cast<int>(command.header.lane) == compute && last_task.value == 0) {
      loads += task->weights.size();
      if (task->kind == command::TaskKind::kForwardBackward) {
        last_task.value = command.header.signal_value;
      }
    }
    if (static_cast<int>(command.header.lane) != p2p) continue;
    const std::vector<command::SemaphoreWait>& waits = command.header.waits;
    if (last_task.value > 0 && std::count(waits.begin(), waits.end(), last_task) > 0) break;
    ++passed;
  }
  EXPECT_GT(last_task.value, 0U);
  EXPECT_GT(passed, loads);
}

// The last group would run on both devices again if one of them lacked anything. So what it reads,
// and what it made, has to stay until both have committed all that they make: here the place of
// microbatch 1, which device 0 has nothing to do with.
TEST_F(SumsBetweenDevicesTest, ABankWaitsForAllWhoAddUpAPart) {
  for (const int parts : {1, 2}) {
    Complete(parts);
    const command::ObjectKey in_its_place{command::ObjectKind::kBoundaryGradient, 1, 1};
    bool found = false;
    for (const command::Command& command : Commands()) {
      const auto* copy = std::get_if<command::Transfer>(&command.body);
      if (copy == nullptr || !copy->commit || copy->commit->key != in_its_place) continue;
      found = true;
      const auto waits_for_device_0 =
          Contains(Field(&command::SemaphoreWait::semaphore, kD2HOfDevice0));
      if (parts == 1) {
        EXPECT_THAT(command.header.waits, waits_for_device_0);
      } else {
        EXPECT_THAT(command.header.waits, Not(waits_for_device_0));
      }
    }
    EXPECT_TRUE(found);
  }
}

TEST_F(SumsBetweenDevicesTest, ShardsOfAPartRunAgainTogether) {
  for (const int parts : {1, 2}) {
    Complete(parts);
    const command::ObjectTableLayout table(model_, 2, 2);
    std::vector<command::ObjectView> records(table.size());
    const auto set = [&](command::ObjectKind kind, int index, int part, uint64_t version) {
      const command::ObjectKey key{kind, index, part};
      records[table.IndexOf(key)] = {key, Bytes(0), Bytes(64), version,
                                     command::ObjectState::kClean};
    };
    for (int i = 0; i < table.size(); ++i) records[i].key = table.KeyOf(i);
    for (size_t block = 0; block < model_.blocks.size(); ++block) {
      for (command::ObjectKind kind :
           {command::ObjectKind::kParameter, command::ObjectKind::kMoment1,
            command::ObjectKind::kMoment2}) {
        set(kind, static_cast<int>(block), 0, 0);
      }
    }
    for (int reference : plan::ReferencesOf(model_, plan_.backward_groups[3].layers)) {
      for (int part = 0; part < parts; ++part) {
        set(command::ObjectKind::kGradient, reference, part, 1);
      }
    }
    set(command::ObjectKind::kLoss, 0, 1, 1);  // that of device 0 is not there yet
    for (int m : {0, 1}) set(command::ObjectKind::kBoundaryGradient, 3, m, 1);
    const absl::StatusOr<recovery::Frontier> frontier =
        recovery::Frontier::FromRecords(table, records, 0);
    ASSERT_TRUE(frontier.ok()) << frontier.status();
    const absl::StatusOr<recovery::StepWork> work =
        recovery::DeriveStepWork(model_, plan_, plan::ArenaLayout(model_, plan_), *frontier, 0);
    ASSERT_TRUE(work.ok()) << work.status();
    EXPECT_THAT(work->backward[3], ElementsAre(true, parts == 1));
  }
}

}  // namespace
}  // namespace harmony::dispatch
