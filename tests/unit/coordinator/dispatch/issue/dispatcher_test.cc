#include "coordinator/dispatch/issue/dispatcher.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/model/model_sizes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator/dispatch/small_case.h"

namespace harmony::dispatch {
namespace {

using ::testing::HasSubstr;

// Lanes: device 0: 0 compute, 1 weights in, 2 stream in, 3 out, 4 peer; device 1: 5 to 9; 10
// updates, 11 host input and output.
constexpr char kOneStepOnTwoDevices[] = R"(
#1 step 0 lane 11=1 initialize
#2 step 0 lane 11=2 load_batch
#3 step 0 lane 1=1 copy weights 1024 B arena+0 -> device0+0 expect 0=0 after 11>=1
#4 step 0 lane 6=1 copy weights 3072 B arena+1024 -> device1+0 expect 1=0 after 11>=1
#5 step 0 lane 2=1 copy tokens 32 B arena+16128 -> device0+1024 expect 13=1 after 11>=2
#6 step 0 lane 1=2 copy weights 1280 B arena+4096 -> device0+31488 expect 2=0 after 11>=1
#7 step 0 lane 6=2 copy weights 3072 B arena+1024 -> device1+29696 expect 1=0 after 11>=1
#8 step 0 lane 0=1 forward layers 0-0 microbatch 0 w0@0 out1@1536 batch0@1024 after 1>=1 after 2>=1
#9 step 0 lane 2=2 copy tokens 32 B arena+16160 -> device0+1280 expect 13=1 after 11>=2
#10 step 0 lane 3=1 copy stash 256 B device0+1536 -> arena+17920 commit stash(1, forward task 0)=1 retire 22 after 0>=1
#11 step 0 lane 4=1 copy boundary 256 B device0+1536 -> device1+3072 after 0>=1
#12 step 0 lane 0=2 forward layers 0-0 microbatch 1 w0@0 out1@1792 batch0@1280 after 2>=2
#13 step 0 lane 2=3 copy tokens 32 B arena+16384 -> device0+30208 expect 13=1 after 11>=2
#14 step 0 lane 5=1 forward layers 1-1 microbatch 0 w1@0 in@3072 out2@3584 after 4>=1 after 6>=1
#15 step 0 lane 3=2 copy stash 256 B device0+1792 -> arena+18176 commit stash(1, forward task 1)=1 retire 23 after 0>=2
#16 step 0 lane 7=1 copy stash 256 B arena+17920 -> device1+28672 expect 22=1 after 3>=1
#17 step 0 lane 4=2 copy boundary 256 B device0+1792 -> device1+3328 after 0>=2
#18 step 0 lane 8=1 copy stash 256 B device1+3584 -> arena+18432 commit stash(2, forward task 0)=1 retire 24 after 5>=1
#19 step 0 lane 2=4 copy tokens 32 B arena+16416 -> device0+30720 expect 13=1 after 11>=2
#20 step 0 lane 9=1 copy boundary 256 B device1+3584 -> device0+30464 after 5>=1
#21 step 0 lane 5=2 forward layers 1-1 microbatch 1 w1@0 in@3328 out2@3840 after 4>=2
#22 step 0 lane 0=3 forward_backward layers 2-2 microbatch 0 w2@31488 g2@28416 in@30464 dx@29696 batch1@30208 loss@31232 after 1>=2 after 2>=3 after 9>=1
#23 step 0 lane 8=2 copy stash 256 B device1+3840 -> arena+18688 commit stash(2, forward task 1)=1 retire 25 after 5>=2
#24 step 0 lane 2=5 copy tokens 32 B arena+16128 -> device0+0 expect 13=1 after 0>=2 after 11>=2
#25 step 0 lane 9=2 copy boundary 256 B device1+3840 -> device0+30976 after 5>=2
#26 step 0 lane 3=3 copy boundary_commit 256 B device0+29696 -> arena+18944 commit boundary_gradient(2, microbatch 0)=1 retire 30 after 0>=3
#27 step 0 lane 7=2 copy stash 256 B arena+18176 -> device1+29184 expect 23=1 after 3>=2
#28 step 0 lane 4=3 copy boundary 256 B device0+29696 -> device1+28928 after 0>=3
#29 step 0 lane 0=4 forward_backward layers 2-2 microbatch 1 w2@31488 g2@28416 in@30976 dx@29952 batch1@30720 loss@31296 after 2>=4 after 9>=2
#30 step 0 lane 5=3 backward layers 1-1 microbatch 0 w1@29696 g1@25088 in@28672 dy@28928 dx@28160 after 4>=3 after 6>=2 after 7>=1
#31 step 0 lane 3=4 copy boundary_commit 256 B device0+29952 -> arena+19200 commit boundary_gradient(2, microbatch 1)=1 retire 31 after 0>=4
#32 step 0 lane 4=4 copy boundary 256 B device0+29952 -> device1+29440 after 0>=4
#33 step 0 lane 3=5 copy loss 128 B device0+31232 -> arena+17664 commit loss(0)=1 retire 12 after 0>=4
#34 step 0 lane 8=3 copy boundary_commit 256 B device1+28160 -> arena+19456 commit boundary_gradient(1, microbatch 0)=1 retire 28 after 5>=3
#35 step 0 lane 2=6 copy tokens 32 B arena+16160 -> device0+512 expect 13=1 after 0>=2 after 11>=2
#36 step 0 lane 9=3 copy boundary 256 B device1+28160 -> device0+256 after 0>=2 after 5>=3
#37 step 0 lane 5=4 backward layers 1-1 microbatch 1 w1@29696 g1@25088 in@29184 dy@29440 dx@28416 after 4>=4 after 7>=2
#38 step 0 lane 0=5 backward layers 0-0 microbatch 0 g0@1024 dy@256 batch0@0 after 2>=5 after 3>=2 after 4>=2 after 9>=3
#39 step 0 lane 10=1 step_scalars after 3>=5
#40 step 0 lane 3=6 copy gradients 1280 B device0+28416 -> arena+19968 commit gradient(2)=1 retire 11 after 0>=4
#41 step 0 lane 10=2 update block 2 gradient 11 after 3>=6 after 11>=1
#42 step 0 lane 8=4 copy boundary_commit 256 B device1+28416 -> arena+19712 commit boundary_gradient(1, microbatch 1)=1 retire 29 after 5>=4
#43 step 0 lane 9=4 copy boundary 256 B device1+28416 -> device0+768 after 0>=2 after 5>=4
#44 step 0 lane 0=6 backward layers 0-0 microbatch 1 g0@1024 dy@768 batch0@512 after 2>=6 after 9>=4
#45 step 0 lane 8=5 copy gradients 3072 B device1+25088 -> arena+19968 commit gradient(1)=1 retire 10 retire 11 after 5>=4 after 10>=2
#46 step 0 lane 10=3 update block 1 gradient 10 after 8>=5 after 11>=1
#47 step 0 lane 3=7 copy gradients 1024 B device0+1024 -> arena+19968 commit gradient(0)=1 retire 9 retire 10 after 0>=6 after 10>=3
#48 step 0 lane 10=4 update block 0 gradient 9 after 3>=7 after 11>=1
#49 step 0 lane 11=3 checkpoint after 10>=4
)";

class DispatcherTest : public ::testing::Test {
 protected:
  // Issues all there is, telling it that everything completes at once, in lane order.
  std::vector<command::Command> RunToEnd(Dispatcher& dispatcher) {
    std::vector<command::Command> all;
    while (!dispatcher.done()) {
      absl::StatusOr<std::vector<command::Command>> commands = dispatcher.NextCommands();
      EXPECT_TRUE(commands.ok()) << commands.status();
      if (!commands.ok() || (commands->empty() && all.empty())) break;
      std::map<int, uint64_t> progress;
      for (command::Command& command : *commands) {
        progress[static_cast<int>(command.header.lane)] = command.header.signal_value;
        all.push_back(std::move(command));
      }
      for (const auto& [lane, value] : progress) dispatcher.OnLaneProgress(lane, value);
      if (progress.empty() && !dispatcher.done()) {
        ADD_FAILURE() << "no commands, not done";
        break;
      }
    }
    return all;
  }

  UnitCosts costs_;
};

TEST_F(DispatcherTest, IssuesTheExactTable) {
  const model::ModelSpec model = SmallModel();
  const plan::Plan plan = SmallPlan(model, 2);
  Dispatcher dispatcher(model, plan, costs_, {.first_step = 0, .end_step = 1});
  ASSERT_TRUE(dispatcher.BeginGeneration(1, {}).ok());
  const absl::StatusOr<std::vector<command::Command>> commands = dispatcher.NextCommands();
  ASSERT_TRUE(commands.ok()) << commands.status();
  std::string text = "\n";
  for (const command::Command& command : *commands)
    absl::StrAppend(&text, DebugString(command), "\n");
  EXPECT_EQ(text, kOneStepOnTwoDevices);
}

TEST_F(DispatcherTest, TheStreamDoesNotDependOnCompletions) {
  const model::ModelSpec model = SmallModel(3);
  const plan::Plan plan = SmallPlan(model, 2);
  std::string streams[3];
  for (int window : {1, 7, 64}) {
    Dispatcher dispatcher(model, plan, costs_,
                          {.first_step = 0, .end_step = 4, .save_steps = 2, .window = window});
    ASSERT_TRUE(dispatcher.BeginGeneration(1, {}).ok());
    std::string& text = streams[window == 1 ? 0 : window == 7 ? 1 : 2];
    for (const command::Command& command : RunToEnd(dispatcher)) {
      absl::StrAppend(&text, DebugString(command), "\n");
    }
    EXPECT_EQ(dispatcher.completed_steps(), 4);
  }
  EXPECT_EQ(streams[0], streams[1]);
  EXPECT_EQ(streams[0], streams[2]);
}

TEST_F(DispatcherTest, WaitsOnlyForWhatWasIssuedBefore) {
  const model::ModelSpec model = SmallModel(4, true);
  for (job::UpdateMode update : {job::UpdateMode::kEager, job::UpdateMode::kDeferred}) {
    const plan::Plan plan = SmallPlan(model, 3, update);
    Dispatcher dispatcher(model, plan, costs_, {.first_step = 0, .end_step = 3});
    ASSERT_TRUE(dispatcher.BeginGeneration(1, {}).ok());
    std::map<uint32_t, uint64_t> issued;
    for (const command::Command& command : RunToEnd(dispatcher)) {
      for (const command::SemaphoreWait& wait : command.header.waits) {
        EXPECT_LE(wait.value, issued[wait.semaphore]) << DebugString(command);
        EXPECT_NE(wait.semaphore, command.header.lane) << DebugString(command);
      }
      EXPECT_EQ(command.header.signal_value, ++issued[command.header.lane]);
    }
  }
}

TEST_F(DispatcherTest, KeepsTheWindow) {
  const model::ModelSpec model = SmallModel(2);
  const plan::Plan plan = SmallPlan(model, 2);
  Dispatcher dispatcher(model, plan, costs_, {.first_step = 0, .end_step = 9, .window = 3});
  ASSERT_TRUE(dispatcher.BeginGeneration(1, {}).ok());
  std::map<uint32_t, int> outstanding;
  const std::vector<command::Command> commands = dispatcher.NextCommands().value();
  for (const command::Command& command : commands) ++outstanding[command.header.lane];
  for (const auto& [lane, count] : outstanding) EXPECT_LE(count, 3) << lane;
  EXPECT_TRUE(dispatcher.NextCommands()->empty());
}

TEST_F(DispatcherTest, StopsAfterTheCurrentStepWithACheckpoint) {
  const model::ModelSpec model = SmallModel();
  const plan::Plan plan = SmallPlan(model, 2);
  Dispatcher dispatcher(model, plan, costs_, {.first_step = 0, .end_step = 100});
  ASSERT_TRUE(dispatcher.BeginGeneration(1, {}).ok());
  const std::vector<command::Command> commands = dispatcher.NextCommands().value();
  dispatcher.StopAfterCurrentStep();
  std::map<int, uint64_t> progress;
  for (const command::Command& command : commands)
    progress[command.header.lane] = command.header.signal_value;
  for (const auto& [lane, value] : progress) dispatcher.OnLaneProgress(lane, value);
  const std::vector<command::Command> rest = RunToEnd(dispatcher);
  EXPECT_TRUE(dispatcher.done());
  EXPECT_LE(dispatcher.completed_steps(), 2);
  int64_t saved = -1;
  for (const command::Command& command : rest) {
    const auto* host = std::get_if<command::HostTask>(&command.body);
    if (host != nullptr && host->kind == command::HostTaskKind::kCheckpoint)
      saved = command.header.step;
  }
  EXPECT_EQ(saved + 1, dispatcher.completed_steps());
}

TEST_F(DispatcherTest, SavesAlsoWhenThereIsNothingToDo) {
  const model::ModelSpec model = SmallModel();
  const plan::Plan plan = SmallPlan(model, 1);
  Dispatcher dispatcher(model, plan, costs_, {.first_step = 0, .end_step = 0});
  ASSERT_TRUE(dispatcher.BeginGeneration(1, {}).ok());
  const std::vector<command::Command> commands = RunToEnd(dispatcher);
  ASSERT_EQ(commands.size(), 2);
  EXPECT_THAT(DebugString(commands[0]), HasSubstr("initialize"));
  EXPECT_THAT(DebugString(commands[1]), HasSubstr("checkpoint"));
  EXPECT_EQ(commands[1].header.step, -1);
}

TEST_F(DispatcherTest, NamesTheGroupThatDoesNotFit) {
  const model::ModelSpec model = SmallModel();
  plan::Plan plan = SmallPlan(model, 2);
  plan.devices[1].resident = KiB(4);
  Dispatcher dispatcher(model, plan, costs_, {.first_step = 0, .end_step = 1});
  const absl::Status status = dispatcher.BeginGeneration(1, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("device 1"));
  EXPECT_THAT(status.message(), HasSubstr("too little"));
}

// The forward's copy of the weights serves the backward, in a place of its own.
TEST_F(DispatcherTest, LoadsKeptWeightsOnceAStep) {
  const model::ModelSpec model = SmallModel();
  plan::Plan plan = SmallPlan(model, 2);
  plan.backward_groups[1].keep_weights = true;
  Dispatcher dispatcher(model, plan, costs_, {.first_step = 0, .end_step = 2});
  ASSERT_TRUE(dispatcher.BeginGeneration(1, {}).ok());
  std::vector<Bytes> loads, bindings;
  for (const command::Command& command : RunToEnd(dispatcher)) {
    const auto* copy = std::get_if<command::Transfer>(&command.body);
    if (copy != nullptr && copy->expect && copy->expect->record == 1) {
      loads.push_back(copy->destination.offset);
    }
    const auto* task = std::get_if<command::ComputeTask>(&command.body);
    if (task != nullptr && task->layers.first == 1) bindings.push_back(task->weights[0].offset);
  }
  const Bytes place = plan.devices[1].resident - model.blocks[1].weight_bytes;
  EXPECT_THAT(loads, ::testing::ElementsAre(place, place));
  EXPECT_THAT(bindings, ::testing::AllOf(::testing::SizeIs(8), ::testing::Each(place)));
  EXPECT_GE(dispatcher.PeakBytes(1), model.blocks[1].weight_bytes);
  EXPECT_LE(dispatcher.PeakBytes(1), plan.devices[1].resident);
}

// The producer writes a stash where it is kept, on its own device or by a copy to the other;
// forward and backward read it there; nothing of it goes to the host.
TEST_F(DispatcherTest, KeptStashesNeverLeaveTheDevice) {
  const model::ModelSpec model = SmallModel(2);
  for (int devices : {1, 2}) {
    plan::Plan plan = SmallPlan(model, devices);
    for (plan::LayerGroup& group : plan.backward_groups) group.keep_stash = true;
    const plan::ArenaLayout layout(model, plan);
    Dispatcher dispatcher(model, plan, costs_, {.first_step = 0, .end_step = 2});
    ASSERT_TRUE(dispatcher.BeginGeneration(1, {}).ok());
    int peer_copies = 0;
    std::map<std::pair<int, int>, Bytes> inputs;
    for (const command::Command& command : RunToEnd(dispatcher)) {
      if (const auto* copy = std::get_if<command::Transfer>(&command.body)) {
        EXPECT_NE(copy->traffic, command::TrafficClass::kStash) << DebugString(command);
        peer_copies += copy->source.device >= 0 && copy->destination.device >= 0 ? 1 : 0;
      }
      const auto* task = std::get_if<command::ComputeTask>(&command.body);
      if (task == nullptr || !task->input) continue;
      const auto place = inputs.try_emplace({task->layers.first, task->microbatch}, *task->input);
      EXPECT_EQ(place.first->second, *task->input) << DebugString(command);
    }
    EXPECT_EQ(inputs.size(), 6);  // three groups with a stash, two microbatches
    EXPECT_TRUE(devices == 1 ? peer_copies == 0 : peer_copies >= 12) << peer_copies;
  }
}

// Each microbatch's activations have a place of their own, which forward and backward name; nothing
// of the group's input goes to the host.
TEST_F(DispatcherTest, KeptActivationsHaveTheirPlaces) {
  const model::ModelSpec model = SmallModel(2);
  plan::Plan plan = SmallPlan(model, 1);
  plan.forward_groups = {{{0, 2}, 0}};
  plan.backward_groups = {{{0, 2}, 0, false, true, true}, {{3, 3}, 0}};
  plan.gradient_ring = plan::ArenaLayout::DefaultRing(model, plan);
  Dispatcher dispatcher(model, plan, costs_, {.first_step = 0, .end_step = 2});
  ASSERT_TRUE(dispatcher.BeginGeneration(1, {}).ok());
  std::map<int, std::vector<Bytes>> places;  // by microbatch
  for (const command::Command& command : RunToEnd(dispatcher)) {
    const auto* task = std::get_if<command::ComputeTask>(&command.body);
    if (task == nullptr) continue;
    EXPECT_EQ(task->kept.has_value(), task->layers.first == 0) << DebugString(command);
    if (task->kept) places[task->microbatch].push_back(*task->kept);
  }
  const Bytes each = model::KeptActivationBytes(model, {0, 2}, 1);
  const Bytes begin = plan.devices[0].resident - each * 2;
  EXPECT_THAT(places[0], ::testing::AllOf(::testing::SizeIs(4), ::testing::Each(begin)));
  EXPECT_THAT(places[1], ::testing::AllOf(::testing::SizeIs(4), ::testing::Each(begin + each)));
  EXPECT_GE(dispatcher.PeakBytes(0), each * 2);
}

// Forwards at twice the size of backwards: half as many, and the fused group gets slices.
TEST_F(DispatcherTest, ForwardTasksOfTwoMicrobatches) {
  const model::ModelSpec model = SmallModel();
  plan::Plan plan = SmallPlan(model, 2);
  plan.num_microbatches = 4;
  plan.microbatches_per_forward_task = 2;
  const plan::ArenaLayout layout(model, plan);
  Dispatcher dispatcher(model, plan, costs_, {.first_step = 0, .end_step = 1});
  ASSERT_TRUE(dispatcher.BeginGeneration(1, {}).ok());
  const Bytes hidden = model::BoundaryBytes(model, 1, 1);
  std::string tasks;
  std::map<int64_t, int> sizes;  // of copies to the head's device and of stashes, in microbatches
  for (const command::Command& command : RunToEnd(dispatcher)) {
    if (const auto* task = std::get_if<command::ComputeTask>(&command.body)) {
      absl::StrAppend(&tasks, task->layers.first, ".", task->microbatch, "x", task->samples, " ");
    }
    const auto* copy = std::get_if<command::Transfer>(&command.body);
    if (copy == nullptr) continue;
    if (copy->commit && copy->commit->key.kind == command::ObjectKind::kStash) {
      EXPECT_EQ(copy->size, hidden * 2);
      EXPECT_LT(copy->commit->key.number, 2);
    }
    if (copy->traffic == command::TrafficClass::kBoundary)
      ++sizes[copy->size.count() / hidden.count()];
  }
  EXPECT_THAT(tasks, ::testing::StartsWith("0.0x2 0.1x2 1.0x2 "));
  EXPECT_THAT(tasks, HasSubstr("2.3x1"));
  EXPECT_EQ(sizes[2], 2);   // forward to forward
  EXPECT_EQ(sizes[1], 12);  // slices to the head, and the gradients of two boundaries
}

// ---- Recovery ----

class RecoveryTest : public DispatcherTest {
 protected:
  RecoveryTest()
      : model_(SmallModel()),
        plan_(SmallPlan(model_, 2)),
        table_(model_, 2),
        layout_(model_, plan_) {
    records_.resize(table_.size());
    for (int i = 0; i < table_.size(); ++i) records_[i].key = table_.KeyOf(i);
    for (int block = 0; block < 3; ++block) SetBlock(block, 4, command::ObjectState::kClean);
  }

  void SetBlock(int block, uint64_t version, command::ObjectState state) {
    for (command::ObjectKind kind : {command::ObjectKind::kParameter, command::ObjectKind::kMoment1,
                                     command::ObjectKind::kMoment2}) {
      Set({kind, block, 0}, version, Bytes(0), state);
    }
  }
  void Set(const command::ObjectKey& key, uint64_t version, Bytes offset,
           command::ObjectState state = command::ObjectState::kClean) {
    records_[table_.IndexOf(key)] = {key, offset, Bytes(1024), version, state};
  }
  // Died in step 5, in the update of the topmost group: below it, nothing but forwards was done.
  void SetTopGroupUpdating() {
    Set({command::ObjectKind::kBatch, 0, 0}, 5, layout_.Batch(0));
    Set({command::ObjectKind::kLoss, 0, 0}, 5, layout_.Loss());
    Set({command::ObjectKind::kStepScalars, 0, 0}, 5, layout_.Scalars(0));
    SetBlock(2, 5, command::ObjectState::kUpdating);
    Set({command::ObjectKind::kGradient, 2, 0}, 5, layout_.ring_begin());
    for (int m : {0, 1}) {
      Set({command::ObjectKind::kBoundaryGradient, 2, m}, 5, layout_.BoundaryGradient(0, m));
    }
  }
  // What has to be computed and updated, in issue order, and what is loaded for it.
  std::string Recover(int64_t end_step = 5) {
    Dispatcher dispatcher(model_, plan_, costs_, {.first_step = 0, .end_step = end_step});
    const absl::Status status = dispatcher.BeginGeneration(7, records_);
    if (!status.ok()) return std::string(status.message());
    std::string text;
    for (const command::Command& command : RunToEnd(dispatcher)) {
      if (const auto* task = std::get_if<command::ComputeTask>(&command.body)) {
        static constexpr const char* kNames[] = {"F", "B", "FB"};
        absl::StrAppend(&text, kNames[static_cast<int>(task->kind)], task->layers.first, ".",
                        task->microbatch, " ");
      } else if (const auto* host = std::get_if<command::HostTask>(&command.body)) {
        if (host->kind == command::HostTaskKind::kUpdate)
          absl::StrAppend(&text, "U", host->block, " ");
        if (host->kind == command::HostTaskKind::kStepScalars) absl::StrAppend(&text, "S ");
        if (host->kind == command::HostTaskKind::kLoadBatch) absl::StrAppend(&text, "batch ");
        if (host->kind == command::HostTaskKind::kCheckpoint)
          absl::StrAppend(&text, "save", command.header.step);
      }
    }
    return text;
  }

  model::ModelSpec model_;
  plan::Plan plan_;
  command::ObjectTableLayout table_;
  plan::ArenaLayout layout_;
  std::vector<command::ObjectView> records_;
};

TEST_F(RecoveryTest, RunsAWholeStepWhenNothingOfItIsCommitted) {
  EXPECT_EQ(Recover(),
            "batch F0.0 F0.1 F1.0 F1.1 FB2.0 FB2.1 B1.0 B1.1 B0.0 S U2 B0.1 U1 U0 save4");
}

TEST_F(RecoveryTest, RunsOnlyTheMissingMicrobatchesForward) {
  Set({command::ObjectKind::kBatch, 0, 0}, 5, layout_.Batch(0));
  Set({command::ObjectKind::kStash, 1, 0}, 5, layout_.Stash(1, 0));
  Set({command::ObjectKind::kStash, 1, 1}, 5, layout_.Stash(1, 1));
  Set({command::ObjectKind::kStash, 2, 0}, 5, layout_.Stash(2, 0));
  EXPECT_THAT(Recover(), ::testing::StartsWith("F1.1 FB2.0 FB2.1 B1.0 "));
}

TEST_F(RecoveryTest, GoesOnBelowTheGroupsThatAreComplete) {
  Set({command::ObjectKind::kBatch, 0, 0}, 5, layout_.Batch(0));
  Set({command::ObjectKind::kLoss, 0, 0}, 5, layout_.Loss());
  Set({command::ObjectKind::kStepScalars, 0, 0}, 5, layout_.Scalars(0));
  SetBlock(2, 5, command::ObjectState::kClean);
  Set({command::ObjectKind::kGradient, 1, 0}, 5, layout_.ring_begin());
  for (int m : {0, 1})
    Set({command::ObjectKind::kBoundaryGradient, 1, m}, 5, layout_.BoundaryGradient(1, m));
  SetBlock(1, 5, command::ObjectState::kUpdating);
  EXPECT_EQ(Recover(), "U1 B0.0 B0.1 U0 save4");
}

TEST_F(RecoveryTest, RunsAGroupAgainWhoseOutputGradientIsNeededOnceMore) {
  Set({command::ObjectKind::kBatch, 0, 0}, 5, layout_.Batch(0));
  Set({command::ObjectKind::kLoss, 0, 0}, 5, layout_.Loss());
  Set({command::ObjectKind::kGradient, 2, 0}, 5, layout_.ring_begin());
  Set({command::ObjectKind::kBoundaryGradient, 2, 0}, 5, layout_.BoundaryGradient(0, 0));
  for (int boundary : {1, 2}) {
    for (int m : {0, 1})
      Set({command::ObjectKind::kStash, boundary, m}, 5, layout_.Stash(boundary, m));
  }
  EXPECT_THAT(Recover(), ::testing::StartsWith("FB2.0 FB2.1 B1.0 "));
}

// Where the forward does not run again, the backward loads the weights that it would have kept.
TEST_F(RecoveryTest, LoadsKeptWeightsForABackwardWithoutItsForward) {
  plan_.backward_groups[1].keep_weights = true;
  Set({command::ObjectKind::kBatch, 0, 0}, 5, layout_.Batch(0));
  for (int boundary : {1, 2}) {
    for (int m : {0, 1})
      Set({command::ObjectKind::kStash, boundary, m}, 5, layout_.Stash(boundary, m));
  }
  EXPECT_EQ(Recover(), "FB2.0 FB2.1 B1.0 B1.1 B0.0 S U2 B0.1 U1 U0 save4");
}

// Stashes on devices are lost: the forward runs again, as far as a stash is wanted, and no further.
TEST_F(RecoveryTest, RunsTheForwardAgainForKeptStashes) {
  for (plan::LayerGroup& group : plan_.backward_groups) group.keep_stash = true;
  SetTopGroupUpdating();
  EXPECT_EQ(Recover(), "U2 F0.0 F0.1 B1.0 B1.1 B0.0 B0.1 U1 U0 save4");
}

// So are activations: the forward of the groups that kept them runs again, to its end.
TEST_F(RecoveryTest, RunsTheForwardAgainForKeptActivations) {
  plan_.backward_groups[1].keep_stash = plan_.backward_groups[1].keep_activations = true;
  SetTopGroupUpdating();
  EXPECT_EQ(Recover(), "U2 F0.0 F0.1 F1.0 F1.1 B1.0 B1.1 B0.0 B0.1 U1 U0 save4");
}

// A forward group that reaches above the unfinished ones: those layers' weights are new already.
TEST_F(RecoveryTest, EndsAForwardGroupWhereItsLastWantedStashIs) {
  model_ = SmallModel(2);
  plan_ = SmallPlan(model_, 2);
  plan_.forward_groups = {{{0, 2}, 1}};
  plan_.backward_groups[1].keep_stash = true;
  table_ = command::ObjectTableLayout(model_, 2);
  layout_ = plan::ArenaLayout(model_, plan_);
  records_.assign(table_.size(), {});
  for (int i = 0; i < table_.size(); ++i) records_[i].key = table_.KeyOf(i);
  SetBlock(0, 4, command::ObjectState::kClean);
  SetBlock(1, 4, command::ObjectState::kClean);
  SetBlock(2, 5, command::ObjectState::kClean);
  SetBlock(3, 5, command::ObjectState::kClean);
  Set({command::ObjectKind::kBatch, 0, 0}, 5, layout_.Batch(0));
  Set({command::ObjectKind::kStepScalars, 0, 0}, 5, layout_.Scalars(0));
  for (int m : {0, 1})
    Set({command::ObjectKind::kBoundaryGradient, 2, m}, 5, layout_.BoundaryGradient(1, m));
  EXPECT_EQ(Recover(), "F0.0 F0.1 B1.0 B1.1 B0.0 B0.1 U1 U0 save4");
}

TEST_F(RecoveryTest, RefusesRecordsThatContradictEachOther) {
  SetBlock(2, 6, command::ObjectState::kClean);
  EXPECT_THAT(Recover(), HasSubstr("parameter(2) has version 6"));
  SetBlock(2, 4, command::ObjectState::kClean);
  SetBlock(0, 5, command::ObjectState::kClean);  // before the groups above it were
  EXPECT_THAT(Recover(), HasSubstr("parameter(0), which is updated already"));
}

// It is not initialised again, which would lose all steps without a word.
TEST_F(RecoveryTest, RefusesAFreeRecordOfASegmentThatHasRun) {
  const std::vector<command::ObjectView> run = records_;
  SetBlock(1, 0, command::ObjectState::kFree);
  SetBlock(0, 5, command::ObjectState::kClean);
  EXPECT_THAT(Recover(),
              ::testing::AllOf(HasSubstr("the segment is damaged"), HasSubstr("(1) is free")));
  // The first step, of which a gradient tells.
  records_ = run;
  for (int block : {0, 1, 2}) SetBlock(block, 0, command::ObjectState::kFree);
  Set({command::ObjectKind::kGradient, 2, 0}, 5, layout_.ring_begin());
  EXPECT_THAT(Recover(),
              ::testing::AllOf(HasSubstr("the segment is damaged"), HasSubstr("gradient(2")));
}

TEST_F(RecoveryTest, WritesTheCheckpointThatMayBeMissing) { EXPECT_EQ(Recover(4), "save3"); }

}  // namespace
}  // namespace harmony::dispatch
