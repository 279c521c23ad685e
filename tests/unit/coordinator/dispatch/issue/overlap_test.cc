// What a group needs does not wait for the gradients of the group before it, which take the link
// for long: neither its memory nor the copies of what its tasks make.

#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "coordinator/dispatch/graph/group_executions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator/dispatch/small_case.h"

namespace harmony::dispatch {
namespace {

// One device, the head's group before that of the block. Of both, four replicas in `parts` parts.
class OverlapTest : public ::testing::Test {
 protected:
  plan::Plan PlanOf(int parts) const {
    return ReplicaPlan(model_, Mode::kPipeline, 1, /*replicas=*/4, /*microbatches=*/8, parts);
  }
  GroupExecution Head(const plan::Plan& plan) const {
    return PlannedExecution(model_, plan, ExecutionKind::kFused, 2);
  }
  GroupExecution Next(const plan::Plan& plan) const {
    return PlannedExecution(model_, plan, ExecutionKind::kBackward, 1);
  }
  // Of its memory, all but the buffers of sums that wait.
  Bytes WithoutSums(const plan::Plan& plan, GroupExecution execution) const {
    ItemSizes items = LayOutItems(model_, plan, execution);
    items.resize(static_cast<size_t>(execution.waiting_sums));
    return TotalOf(items);
  }

  // The copy of the head's gradient, and the tasks of the next group.
  void Run(const plan::Plan& plan) {
    commands_ = CommandsOfOneStep(model_, plan, UnitCosts());
    for (const command::Command& command : commands_) {
      if (const auto* copy = std::get_if<command::Transfer>(&command.body)) {
        if (copy->traffic == command::TrafficClass::kGradients && leaves_ == nullptr)
          leaves_ = &command;
      }
      const auto* task = std::get_if<command::ComputeTask>(&command.body);
      if (task != nullptr && task->kind == command::TaskKind::kBackward && task->layers.first == 1)
        tasks_.push_back(&command);
    }
    ASSERT_NE(leaves_, nullptr);
    ASSERT_EQ(tasks_.size(), 8);
  }
  // The task waits for the copy, or for one behind it.
  bool Waits(const command::Command& task) const {
    return absl::c_any_of(task.header.waits, [&](const command::SemaphoreWait& wait) {
      return wait.semaphore == leaves_->header.lane && wait.value >= leaves_->header.signal_value;
    });
  }

  const model::ModelSpec model_ = SmallModel();  // embedding, block, head
  std::vector<command::Command> commands_;
  const command::Command* leaves_ = nullptr;
  std::vector<const command::Command*> tasks_;
};

// Only the first buffer of a gradient waits for its copy: the others are given back with the last
// task, so that the next group, which lies where they lay, begins without waiting for the link.
TEST_F(OverlapTest, BuffersOfSumsThatWaitAreGivenBackBeforeGradientsLeave) {
  plan::Plan plan = PlanOf(/*parts=*/1);
  GroupExecution next = Next(plan);
  plan.devices[0].resident =
      WithoutSums(plan, Head(plan)) + TotalOf(LayOutItems(model_, plan, next));
  Run(plan);
  for (int m = 0; m < plan.stream_slots; ++m) {  // those after them wait for what these made
    EXPECT_FALSE(Waits(*tasks_[static_cast<size_t>(m)])) << m;
  }
}

// They are needed from the second replica on: where they lack memory until the gradient is out, the
// first replica's tasks do not.
TEST_F(OverlapTest, TheFirstReplicaBeginsBeforeThereAreBuffersForSumsThatWait) {
  plan::Plan plan = PlanOf(/*parts=*/1);
  plan.stream_slots = 8;
  plan.devices[0].resident = WithoutSums(plan, Head(plan)) + WithoutSums(plan, Next(plan));
  Run(plan);
  EXPECT_FALSE(Waits(*tasks_[0]));
  EXPECT_FALSE(Waits(*tasks_[1]));
  EXPECT_TRUE(Waits(*tasks_[2]));
}

// Copies of gradients take 100 units, all others as always.
class SlowGradients : public UnitCosts {
 public:
  Nanos Duration(const command::Command& command) const override {
    const auto* copy = std::get_if<command::Transfer>(&command.body);
    const bool slow = copy != nullptr && copy->traffic == command::TrafficClass::kGradients;
    return slow ? Nanos(100) : UnitCosts::Duration(command);
  }
};

// The last group has two gradients. While the first one is copied the next group makes its boundary
// gradients: these leave before the second one does.
TEST(OvertakingTest, BoundaryGradientsOvertakeGradients) {
  const model::ModelSpec model = SmallModel(/*blocks=*/2);
  plan::Plan plan = SmallPlan(model, 1);
  plan.backward_groups.pop_back();
  plan.forward_groups.pop_back();
  plan.backward_groups.back().layers.last = 3;
  plan.gradient_ring = plan::ArenaLayout::DefaultRing(model, plan);
  plan.arena_dynamic = plan::ArenaLayout(model, plan).dynamic_bytes();
  ASSERT_EQ(plan::CheckPlan(model, plan), absl::OkStatus());
  std::vector<std::string> copies;
  for (const command::Command& command : CommandsOfOneStep(model, plan, SlowGradients())) {
    const auto* copy = std::get_if<command::Transfer>(&command.body);
    if (copy == nullptr || !copy->commit) continue;
    const command::ObjectKey& key = copy->commit->key;
    if (key.kind == command::ObjectKind::kGradient) copies.push_back(absl::StrCat("G", key.index));
    if (key.kind == command::ObjectKind::kBoundaryGradient)
      copies.push_back(absl::StrCat("D", key.index));
  }
  EXPECT_THAT(copies, ::testing::ElementsAre("D2", "D2", "G3", "D1", "D1", "G2", "G1", "G0"));
}

}  // namespace
}  // namespace harmony::dispatch
