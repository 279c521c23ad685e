// Replicas (gradients summed by each, then over them) and shards (data mode: each device runs all
// groups with its replicas): what the dispatcher makes of them, and what is left after a fault.

#include <map>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/model_sizes.h"
#include "common/model/sum_tree.h"
#include "coordinator/dispatch/graph/group_executions.h"
#include "coordinator/recovery/frontier.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator/dispatch/small_case.h"

namespace harmony::dispatch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ReplicasTest : public ::testing::Test {
 protected:
  // One step, or what is left of it: issues all there is, telling it that everything completes.
  std::vector<command::Command> Run(const plan::Plan& plan,
                                    absl::Span<const command::ObjectView> records = {}) {
    return CommandsOfOneStep(model_, plan, costs_, records);
  }

  // The commands of a lane, short: F0.1 a forward of layer 0, microbatch 1; [ and ] where a
  // replica's sums begin and end; G2/1 a gradient of reference 2, replica 1; L1 losses; D a
  // boundary gradient; U1(9 10) an update with its records.
  static std::string LaneText(const std::vector<command::Command>& commands, int lane) {
    std::string text;
    for (const command::Command& command : commands) {
      if (static_cast<int>(command.header.lane) == lane) absl::StrAppend(&text, Text(command));
    }
    return text;
  }
  static std::string Text(const command::Command& command) {
    if (const auto* task = std::get_if<command::ComputeTask>(&command.body)) {
      static constexpr const char* kNames[] = {"F", "B", "FB"};
      return absl::StrCat(task->first_microbatch ? "[" : "", kNames[static_cast<int>(task->kind)],
                          task->layers.first, ".", task->microbatch,
                          task->last_microbatch ? "]" : "", " ");
    }
    if (const auto* copy = std::get_if<command::Transfer>(&command.body)) {
      if (!copy->commit) return "";
      const command::ObjectKey& key = copy->commit->key;
      if (key.kind == command::ObjectKind::kGradient)
        return absl::StrCat("G", key.index, "/", key.number, " ");
      if (key.kind == command::ObjectKind::kLoss) return absl::StrCat("L", key.number, " ");
      return key.kind == command::ObjectKind::kBoundaryGradient ? "D " : "";
    }
    const auto& host = std::get<command::HostTask>(command.body);
    if (host.kind != command::HostTaskKind::kUpdate) return "";
    return absl::StrCat("U", host.block, "(", absl::StrJoin(host.gradient_records, " "), ") ");
  }

  model::ModelSpec model_ = SmallModel();  // embedding, block, head
  UnitCosts costs_;
};

// Each device runs all groups with its half of the microbatches and loads all weights; the updates
// sum the gradients of both, in order.
TEST_F(ReplicasTest, DataModeOnTwoDevices) {
  const plan::Plan plan = ReplicaPlan(model_, Mode::kData, 2, 2);
  ASSERT_TRUE(plan::CheckPlan(model_, plan).ok());
  const std::vector<command::Command> commands = Run(plan);
  const command::LaneTable lanes(2);
  const auto lane = [&](command::LaneKind kind, int device) {
    return LaneText(commands, lanes.IndexOf({kind, device}));
  };
  EXPECT_EQ(lane(command::LaneKind::kCompute, 0),
            "F0.0 F0.1 F1.0 F1.1 [FB2.0 FB2.1] [B1.0 B1.1] [B0.0 B0.1] ");
  EXPECT_EQ(lane(command::LaneKind::kCompute, 1),
            "F0.2 F0.3 F1.2 F1.3 [FB2.2 FB2.3] [B1.2 B1.3] [B0.2 B0.3] ");
  EXPECT_EQ(lane(command::LaneKind::kD2H, 0), "D D L0 G2/0 D D G1/0 G0/0 ");
  EXPECT_EQ(lane(command::LaneKind::kD2H, 1), "D D L1 G2/1 D D G1/1 G0/1 ");
  const command::ObjectTableLayout table(model_, 4, 2);
  const int first = table.IndexOf({command::ObjectKind::kGradient, 0, 0});
  EXPECT_EQ(lane(command::LaneKind::kHostCompute, 0),
            absl::StrCat("U2(", first + 4, " ", first + 5, ") U1(", first + 2, " ", first + 3,
                         ") U0(", first, " ", first + 1, ") "));
  Bytes weights, gradients;
  for (const command::Command& command : commands) {
    const auto* copy = std::get_if<command::Transfer>(&command.body);
    if (copy == nullptr) continue;
    if (copy->traffic == command::TrafficClass::kWeights) weights += copy->size;
    if (copy->traffic == command::TrafficClass::kGradients) gradients += copy->size;
  }
  EXPECT_EQ(weights, plan::ComputeMinimalSwap(model_, plan).weights);
  EXPECT_EQ(gradients, plan::ComputeMinimalSwap(model_, plan).gradients);
  EXPECT_EQ(weights, plan::ComputeMinimalSwap(model_, SmallPlan(model_, 2)).weights * 2);
}

// One set of gradient buffers: a replica begins when the gradients of the one before have left.
// Weights are loaded once for all of them.
TEST_F(ReplicasTest, ReplicasOnOneDeviceFollowEachOther) {
  for (Mode mode : {Mode::kData, Mode::kPipeline}) {
    const plan::Plan plan = ReplicaPlan(model_, mode, 1, 2);
    const std::vector<command::Command> commands = Run(plan);
    EXPECT_EQ(LaneText(commands, 0),
              "F0.0 F0.1 F0.2 F0.3 F1.0 F1.1 F1.2 F1.3 "
              "[FB2.0 FB2.1] [FB2.2 FB2.3] [B1.0 B1.1] [B1.2 B1.3] [B0.0 B0.1] [B0.2 B0.3] ");
    EXPECT_EQ(LaneText(commands, 3), "D D L0 G2/0 D D L1 G2/1 D D G1/0 D D G1/1 G0/0 G0/1 ");
    std::map<int, uint64_t> copied;  // by layer: when its first replica's gradient left
    std::map<int, int> loads;        // by record
    for (const command::Command& command : commands) {
      if (const auto* copy = std::get_if<command::Transfer>(&command.body)) {
        if (copy->commit && copy->commit->key.kind == command::ObjectKind::kGradient &&
            copy->commit->key.number == 0) {
          copied[copy->commit->key.index] = command.header.signal_value;
        }
        if (copy->traffic == command::TrafficClass::kWeights) ++loads[copy->expect->record];
      }
      const auto* task = std::get_if<command::ComputeTask>(&command.body);
      if (task == nullptr || !task->first_microbatch || task->microbatch == 0) continue;
      // It begins at once, and waits where it comes to the gradient.
      EXPECT_THAT(task->gradient_waits,
                  ElementsAre(command::SemaphoreWait{3, copied[task->layers.first]}))
          << command::DebugString(command);
      for (const command::SemaphoreWait& wait : command.header.waits) {
        EXPECT_TRUE(wait.semaphore != 3 || wait.value < copied[task->layers.first]);
      }
    }
    EXPECT_THAT(loads, ElementsAre(std::pair(0, 1), std::pair(1, 2), std::pair(2, 1)));
  }
}

TEST_F(ReplicasTest, PipelineOnTwoDevices) {
  const plan::Plan plan = ReplicaPlan(model_, Mode::kPipeline, 2, 2);
  const std::vector<command::Command> commands = Run(plan);
  EXPECT_EQ(LaneText(commands, 0),
            "F0.0 F0.1 F0.2 F0.3 [FB2.0 FB2.1] [FB2.2 FB2.3] [B0.0 B0.1] [B0.2 B0.3] ");
  EXPECT_EQ(LaneText(commands, 5), "F1.0 F1.1 F1.2 F1.3 [B1.0 B1.1] [B1.2 B1.3] ");
}

// Four replicas on three devices: two shards; the third device has nothing to do.
TEST_F(ReplicasTest, UsesAsManyDevicesAsDivideTheReplicas) {
  const plan::Plan plan = ReplicaPlan(model_, Mode::kData, 3, 4);
  EXPECT_EQ(plan.backward_groups[0].devices.num_shards(), 2);
  const std::vector<command::Command> commands = Run(plan);
  EXPECT_THAT(LaneText(commands, 0), HasSubstr("[FB2.0] [FB2.1] [B1.0] "));
  EXPECT_THAT(LaneText(commands, 5), HasSubstr("[FB2.2] [FB2.3] [B1.2] "));
  EXPECT_THAT(LaneText(commands, 10), IsEmpty());
}

// The link that devices share carries weights once; from the first of them they go on from device
// to device, each copy behind the one that brought them to where it begins.
TEST_F(ReplicasTest, DevicesBehindOneLinkPassWeightsOn) {
  plan::Plan plan = ReplicaPlan(model_, Mode::kData, 4, 4, /*microbatches=*/32);
  for (int device : {0, 1, 3}) plan.devices[device].root = 1;
  const auto peer = [&plan](int shard) {
    return plan::WeightPeer(plan, plan.forward_groups[0], shard);
  };
  ASSERT_EQ(peer(1), -1);
  plan.pass_weights = true;
  ASSERT_EQ(peer(0), -1);
  ASSERT_EQ(peer(1), 0);
  ASSERT_EQ(peer(2), -1);
  ASSERT_EQ(peer(3), 1);
  const command::LaneTable lanes(4);
  std::map<int, int> loads, passes;                              // by device
  std::map<std::pair<int, Bytes>, command::SemaphoreWait> came;  // by device and place: its copy
  Bytes by_host;
  for (const command::Command& command : Run(plan)) {
    const command::SemaphoreWait done{command.header.lane, command.header.signal_value};
    if (const auto* copy = std::get_if<command::Transfer>(&command.body)) {
      const command::Endpoint &from = copy->source, &to = copy->destination;
      if (copy->traffic == command::TrafficClass::kWeights) {
        ++loads[to.device];
        by_host += copy->size;
      } else if (from.device >= 0 && to.device >= 0) {
        ++passes[to.device];
        EXPECT_EQ(from.device, peer(to.device));
        EXPECT_THAT(command.header.waits, ::testing::Contains(came.at({from.device, from.offset})));
      } else {
        continue;
      }
      came[{to.device, to.offset}] = done;
    }
    const auto* task = std::get_if<command::ComputeTask>(&command.body);
    if (task == nullptr || task->microbatch % 8 != 0) continue;  // the first of a group
    const int device = lanes.LaneAt(static_cast<int>(command.header.lane)).device;
    for (const command::WeightBinding& weight : task->weights) {
      EXPECT_THAT(command.header.waits, ::testing::Contains(came.at({device, weight.offset})));
    }
  }
  EXPECT_THAT(loads, ElementsAre(std::pair(0, 4), std::pair(2, 4)));
  EXPECT_THAT(passes, ElementsAre(std::pair(1, 4), std::pair(3, 4)));
  EXPECT_EQ(by_host, plan::ComputeMinimalSwap(model_, plan).weights);
}

// The first groups on both devices, the last one on one of them, which has three quarters of the
// middle one: each microbatch goes from the device that makes it to the one that needs it.
TEST_F(ReplicasTest, EachGroupHasItsOwnSetOfDevices) {
  plan::Plan plan = ReplicaPlan(model_, Mode::kPipeline, 2, 4);
  plan.forward_groups[0].devices = plan.backward_groups[0].devices = {0, 1};
  plan.forward_groups[1].devices = plan.backward_groups[1].devices = {0, 0, 0, 1};
  plan.backward_groups[2].devices = 1;
  ASSERT_EQ(plan::CheckPlan(model_, plan), absl::OkStatus());
  const std::vector<command::Command> commands = Run(plan);
  EXPECT_EQ(LaneText(commands, 0), "F0.0 F0.1 F1.0 F1.1 F1.2 [B1.0] [B1.1] [B1.2] [B0.0] [B0.1] ");
  EXPECT_EQ(LaneText(commands, 5),
            "F0.2 F0.3 F1.3 [FB2.0] [FB2.1] [FB2.2] [FB2.3] [B1.3] [B0.2] [B0.3] ");
  Bytes weights, gradients;
  std::map<int, int> sends;  // by device that has them
  for (const command::Command& command : commands) {
    const auto* copy = std::get_if<command::Transfer>(&command.body);
    if (copy == nullptr) continue;
    if (copy->traffic == command::TrafficClass::kWeights) weights += copy->size;
    if (copy->traffic == command::TrafficClass::kGradients) gradients += copy->size;
    if (copy->source.device >= 0 && copy->destination.device >= 0) ++sends[copy->source.device];
  }
  EXPECT_EQ(weights, plan::ComputeMinimalSwap(model_, plan).weights);
  EXPECT_EQ(gradients, plan::ComputeMinimalSwap(model_, plan).gradients);
  // Of microbatches 0 to 3: the third to device 0, three of them on to device 1; back three, and
  // the third again.
  EXPECT_LE(sends[0], 4);
  EXPECT_LE(sends[1], 4);
  EXPECT_GT(sends[0] + sends[1], 0);
}

// What each shard's device keeps lies there, the places of its own microbatches only.
TEST_F(ReplicasTest, EachShardKeepsItsOwn) {
  plan::Plan plan = ReplicaPlan(model_, Mode::kData, 2, 2);
  for (plan::LayerGroup& group : plan.backward_groups) group.keep_stash = true;
  plan.backward_groups[1].keep_weights = plan.backward_groups[1].keep_activations = true;
  ASSERT_TRUE(plan::CheckPlan(model_, plan).ok());
  std::map<std::pair<Bytes, uint32_t>, std::vector<int>> places;  // of activations, by device
  for (const command::Command& command : Run(plan)) {
    const auto* task = std::get_if<command::ComputeTask>(&command.body);
    if (task == nullptr || task->layers.first != 1) continue;
    ASSERT_TRUE(task->kept.has_value());
    places[{*task->kept, command.header.lane}].push_back(task->microbatch);
  }
  const Bytes each = model::KeptActivationBytes(model_, {1, 1}, 1);
  const Bytes begin = plan.devices[0].resident - each.AlignUp(kSlotAlignment) * 2;
  EXPECT_THAT((places[{begin, 0}]), ElementsAre(0, 0));
  EXPECT_THAT((places[{begin, 5}]), ElementsAre(2, 2));
  EXPECT_EQ(places.size(), 4);
}

// The replicas of a part are added up on the device, each in the buffer behind the sums that wait.
// The next part takes the buffers from the other end, so that the sum leaves meanwhile: only its
// last replica waits for that.
TEST_F(ReplicasTest, PartsOfSeveralReplicasLeaveAsOneGradient) {
  for (const int parts : {1, 2}) {
    const plan::Plan plan = ReplicaPlan(model_, Mode::kPipeline, 1, /*replicas=*/4, 8, parts);
    ASSERT_EQ(plan::CheckPlan(model_, plan), absl::OkStatus());
    std::vector<std::string> sums;  // of the head: replica, whether it begins, ends, is stored
    std::vector<Bytes> buffers;
    std::string adds_to, awaits;  // by task: which buffer, and whether a copy of it
    int copies = 0;
    for (const command::Command& command : Run(plan)) {
      if (const auto* copy = std::get_if<command::Transfer>(&command.body)) {
        copies += copy->traffic == command::TrafficClass::kGradients ? 1 : 0;
      }
      const auto* task = std::get_if<command::ComputeTask>(&command.body);
      if (task == nullptr || task->kind != command::TaskKind::kForwardBackward) continue;
      sums.push_back(absl::StrCat(task->replica, task->first_microbatch ? "[" : "",
                                  task->last_microbatch ? "]" : "",
                                  task->stores_gradients ? "!" : ""));
      const Bytes own = task->gradients.front().offset +
                        task->gradient_stride * model::WaitingSums(task->replica);
      if (absl::c_find(buffers, own) == buffers.end()) buffers.push_back(own);
      adds_to += static_cast<char>('a' + (absl::c_find(buffers, own) - buffers.begin()));
      awaits += task->gradient_waits.empty() ? '-' : 'w';
    }
    if (parts == 1) {
      EXPECT_THAT(sums, ElementsAre("0[", "0]", "1[", "1]", "2[", "2]", "3[", "3]!"));
    } else {
      EXPECT_THAT(sums, ElementsAre("0[", "0]", "1[", "1]!", "0[", "0]", "1[", "1]!"));
    }
    EXPECT_EQ(adds_to, parts == 1 ? "aabbbbcc" : "aabbbbaa");
    EXPECT_EQ(awaits, parts == 1 ? "--------" : "------w-");
    EXPECT_EQ(copies, 3 * parts);
  }
  const plan::Plan one = ReplicaPlan(model_, Mode::kPipeline, 1, 1),
                   four = ReplicaPlan(model_, Mode::kPipeline, 1, 4, 8, 1);
  const auto gradients = [&](const plan::Plan& plan) {  // the first buffer, and the others
    GroupExecution execution = PlannedExecution(model_, plan, ExecutionKind::kBackward, 1);
    const ItemSizes items = LayOutItems(model_, plan, execution);
    return std::pair(items[static_cast<size_t>(execution.first_gradient)],
                     items[static_cast<size_t>(execution.waiting_sums)]);
  };
  EXPECT_EQ(gradients(one), std::pair(gradients(four).first, Bytes(0)));
  EXPECT_EQ(gradients(four).second, gradients(one).first.AlignUp(kSlotAlignment) * 2);
}

// ---- After a fault ----

class ShardRecoveryTest : public ReplicasTest {
 protected:
  ShardRecoveryTest() : plan_(ReplicaPlan(model_, Mode::kData, 2, 2)), table_(model_, 4, 2) {
    records_.resize(table_.size());
    for (int i = 0; i < table_.size(); ++i) records_[i].key = table_.KeyOf(i);
    for (int block = 0; block < 3; ++block) {
      for (command::ObjectKind kind :
           {command::ObjectKind::kParameter, command::ObjectKind::kMoment1,
            command::ObjectKind::kMoment2}) {
        Set({kind, block, 0}, 0);
      }
    }
    Set({command::ObjectKind::kBatch, 0, 0}, 1);
  }
  void Set(const command::ObjectKey& key, uint64_t version, Bytes offset = Bytes(0)) {
    records_[table_.IndexOf(key)] = {key, offset, Bytes(64), version, command::ObjectState::kClean};
  }
  // The first shard has done all of a group but its update.
  void CommitFirstShard(int reference, Bytes ring_begin) {
    Set({command::ObjectKind::kGradient, reference, 0}, 1, ring_begin);
    if (reference == 2) Set({command::ObjectKind::kLoss, 0, 0}, 1);
    if (reference == 0) return;
    for (int m : {0, 1})
      Set({command::ObjectKind::kBoundaryGradient, reference, m}, 1, Bytes(64) * m);
  }

  plan::Plan plan_;
  command::ObjectTableLayout table_;
  std::vector<command::ObjectView> records_;
};

// One device is a group ahead of the other when a fault comes: it keeps its lead, and what the
// other makes goes beside what is there.
TEST_F(ShardRecoveryTest, OneShardAheadOfTheOther) {
  const plan::ArenaLayout layout(model_, plan_);
  for (int boundary : {1, 2}) {
    for (int m = 0; m < 4; ++m) Set({command::ObjectKind::kStash, boundary, m}, 1);
  }
  CommitFirstShard(2, layout.ring_begin());
  const std::vector<command::Command> commands = Run(plan_, records_);
  EXPECT_EQ(LaneText(commands, 0), "[B1.0 B1.1] [B0.0 B0.1] ");
  EXPECT_EQ(LaneText(commands, 5), "[FB2.2 FB2.3] [B1.2 B1.3] [B0.2 B0.3] ");
  EXPECT_EQ(LaneText(commands, 8), "D D L1 G2/1 D D G1/1 G0/1 ");
  for (const command::Command& command : commands) {
    const auto* copy = std::get_if<command::Transfer>(&command.body);
    if (copy == nullptr || !copy->commit) continue;
    if (copy->commit->key != command::ObjectKey{command::ObjectKind::kGradient, 2, 1}) continue;
    EXPECT_EQ(copy->destination.offset,
              layout.ring_begin() + model_.blocks[2].weight_bytes.AlignUp(kSlotAlignment));
  }
}

TEST_F(ShardRecoveryTest, RunsOnlyTheForwardsThatAShardLacks) {
  for (int m : {0, 1, 2}) Set({command::ObjectKind::kStash, 1, m}, 1);
  for (int m : {0, 1}) Set({command::ObjectKind::kStash, 2, m}, 1);
  const std::vector<command::Command> commands = Run(plan_, records_);
  EXPECT_THAT(LaneText(commands, 0), ::testing::StartsWith("[FB2.0 FB2.1] "));
  EXPECT_THAT(LaneText(commands, 5), ::testing::StartsWith("F0.3 F1.2 F1.3 [FB2.2 "));
}

// A shard has several replicas, one is missing: the shard runs all of them, no other does.
TEST_F(ShardRecoveryTest, AMissingReplicaIsItsShardsToMake) {
  plan_ = ReplicaPlan(model_, Mode::kData, 2, 4);
  table_ = command::ObjectTableLayout(model_, 4, 4);
  std::vector<command::ObjectView> records(table_.size());
  std::swap(records, records_);
  for (int i = 0; i < table_.size(); ++i) records_[i].key = table_.KeyOf(i);
  for (const command::ObjectView& record : records) {
    if (record.state == command::ObjectState::kClean) Set(record.key, record.version);
  }
  for (int reference : {0, 1, 2}) {
    for (int replica = 0; replica < 4; ++replica) {
      if (reference != 1 || replica != 3)
        Set({command::ObjectKind::kGradient, reference, replica}, 1);
    }
    for (int m = 0; reference > 0 && m < 4; ++m)
      Set({command::ObjectKind::kBoundaryGradient, reference, m}, 1);
  }
  for (int replica = 0; replica < 4; ++replica) Set({command::ObjectKind::kLoss, 0, replica}, 1);
  for (int m = 0; m < 4; ++m) Set({command::ObjectKind::kStash, 1, m}, 1);
  const absl::StatusOr<recovery::Frontier> frontier =
      recovery::Frontier::FromRecords(table_, records_, 0);
  ASSERT_TRUE(frontier.ok()) << frontier.status();
  const absl::StatusOr<recovery::StepWork> work =
      recovery::DeriveStepWork(model_, plan_, plan::ArenaLayout(model_, plan_), *frontier, 0);
  ASSERT_TRUE(work.ok()) << work.status();
  EXPECT_THAT(work->backward, ElementsAre(ElementsAre(false, false), ElementsAre(false, true),
                                          ElementsAre(false, false)));
  for (const std::vector<recovery::ForwardWork>& group : work->forward) {
    for (const recovery::ForwardWork& shard : group) EXPECT_THAT(shard.tasks, IsEmpty());
  }
}

// ---- What a plan may be ----

TEST_F(ReplicasTest, PlansThatDoNotDivideAreRefused) {
  plan::Plan plan = ReplicaPlan(model_, Mode::kPipeline, 2, 4);
  const auto refused = [&](absl::string_view why) {
    EXPECT_THAT(plan::CheckPlan(model_, plan).message(), HasSubstr(std::string(why)));
  };
  plan.num_microbatches = 6;
  plan.replicas = 3;
  refused("3 replicas are no power of two that divides the 6 microbatches of a step");
  plan.replicas = 4;
  refused("4 replicas are no power of two that divides the 6");
  plan.num_microbatches = 4;
  plan.backward_groups[1].gradient_parts = 3;
  refused("3 parts of gradients (gradient_parts) do not divide 4 replicas");
  plan.backward_groups[1].gradient_parts = 1;
  EXPECT_TRUE(plan::CheckPlan(model_, plan).ok());
  plan.microbatches_per_forward_task = 3;
  refused("do not divide the 4 of a step");
  plan.microbatches_per_forward_task = 1;
  plan.forward_groups[1].devices = {0, 1, 0, 1};
  refused("forward group of layers 1 to 1 on device 0 twice (0+1+0+1), others between");
  plan.forward_groups[1].devices = {0, 1, 2};
  refused("forward group of layers 1 to 1 on 3 devices, which do not divide the 4 replicas");
  plan.forward_groups[1].devices = {0, 2};
  refused("forward group of layers 1 to 1 on device 2 of 2");
  plan.backward_groups[1].devices = {0, 1};
  plan.forward_groups[1].devices = {0, 1};
  EXPECT_TRUE(plan::CheckPlan(model_, plan).ok());  // one part: they add it up among themselves
  plan.backward_groups[1].devices = {0, 0, 0, 1};
  refused("devices 0+0+0+1 cannot add up gradients in 1 part (gradient_parts)");
  plan.backward_groups[1].devices = {0, 1};
  plan.backward_groups[1].gradient_parts = 2;
  EXPECT_TRUE(plan::CheckPlan(model_, plan).ok());
  plan.microbatches_per_forward_task = 4;
  refused("forward tasks of 4 microbatches at once (forward_span) do not divide the 2 of a device");
  plan.microbatches_per_forward_task = 1;
  plan.backward_groups[1].keep_stash = true;  // device 0 makes all of it, and keeps the first half
  refused("keeps its stash (keep_stash) on device 0+1, of which one makes some of what it keeps");
}

TEST_F(ReplicasTest, RingAndSlotsHoldTheGradientsOfAllReplicas) {
  plan::Plan plan = ReplicaPlan(model_, Mode::kPipeline, 1, 4);
  plan::Plan one = plan;
  one.replicas = 1;
  for (plan::LayerGroup& group : one.backward_groups) group.gradient_parts = 1;
  EXPECT_EQ(plan::ArenaLayout::MinimalRing(model_, plan),
            plan::ArenaLayout::MinimalRing(model_, one) * 4);
  plan.update = job::UpdateMode::kDeferred;
  const plan::ArenaLayout layout(model_, plan);
  EXPECT_EQ(layout.Gradient(0, 3) - layout.Gradient(0, 2), model_.blocks[0].weight_bytes);
  EXPECT_EQ(layout.Gradient(1), layout.Gradient(0, 3) + model_.blocks[0].weight_bytes);
  EXPECT_EQ(layout.Loss(3) - layout.Loss(), Bytes(3 * sizeof(command::LossSlot)));
}

TEST_F(ReplicasTest, TheTableNumbersEveryReplica) {
  const command::ObjectTableLayout table(model_, 4, 4);
  for (int i = 0; i < table.size(); ++i) EXPECT_EQ(table.IndexOf(table.KeyOf(i)), i);
  EXPECT_EQ(table.size() - command::ObjectTableLayout(model_, 4).size(), 3 * (3 + 1));
  EXPECT_EQ(command::DebugString({command::ObjectKind::kGradient, 2, 3}), "gradient(2, part 3)");
}

}  // namespace
}  // namespace harmony::dispatch
