#include "common/plan/plan.h"

#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/command/command.h"
#include "common/command/lane_queue.h"
#include "common/command/objects.h"
#include "common/model/model_sizes.h"
#include "common/plan/arena_layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator/dispatch/small_case.h"

namespace harmony::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ObjectTableLayoutTest, NumbersEveryKeyOnce) {
  const model::ModelSpec model = dispatch::SmallModel(2, true);
  const command::ObjectTableLayout table(model, 3);
  std::set<command::ObjectKey> keys;
  for (int i = 0; i < table.size(); ++i) {
    const command::ObjectKey key = table.KeyOf(i);
    EXPECT_EQ(table.IndexOf(key), i) << command::DebugString(key);
    EXPECT_TRUE(keys.insert(key).second);
  }
  EXPECT_EQ(command::DebugString({command::ObjectKind::kStash, 2, 1}), "stash(2, forward task 1)");
}

TEST(LaneTableTest, NumbersEveryLaneOnce) {
  const command::LaneTable lanes(3);
  for (int i = 0; i < lanes.size(); ++i) EXPECT_EQ(lanes.IndexOf(lanes.LaneAt(i)), i);
  EXPECT_EQ(command::DebugString(lanes.LaneAt(8)), "d2h1");
  EXPECT_EQ(command::DebugString(lanes.LaneAt(15)), "host_compute");
}

TEST(PlanTest, LanesIntoADeviceAndDevicesOfOneRootShareLinks) {
  Plan plan;
  plan.devices.resize(4);
  plan.devices[1].root = plan.devices[3].root = 1;
  const command::LaneTable lanes(4);
  const std::vector<int> links = ResourcesOfLanes(plan, {}).of_lane;
  const auto shared = [&](command::Lane a, command::Lane b) {
    return links[lanes.IndexOf(a)] == links[lanes.IndexOf(b)];
  };
  using enum command::LaneKind;
  EXPECT_TRUE(shared({kH2DBulk, 0}, {kH2DStream, 0}));
  EXPECT_TRUE(shared({kH2DBulk, 1}, {kH2DStream, 3}));
  EXPECT_TRUE(shared({kD2H, 1}, {kD2H, 3}));
  EXPECT_FALSE(shared({kD2H, 0}, {kD2H, 2}));
  EXPECT_FALSE(shared({kH2DBulk, 0}, {kH2DBulk, 1}));
  EXPECT_FALSE(shared({kH2DBulk, 1}, {kD2H, 1}));
  EXPECT_FALSE(shared({kP2P, 1}, {kP2P, 3}));
  EXPECT_FALSE(shared({kCompute, 1}, {kCompute, 3}));
}

TEST(LaneResourcesTest, DevicesTakeTurnsOnSharedCores) {
  Plan plan;
  plan.devices.resize(4);
  const command::LaneTable lanes(4);
  const LaneResources resources = ResourcesOfLanes(plan, {{1, 2, 3}, 2});
  const auto compute = [&](int device) {
    return lanes.IndexOf({command::LaneKind::kCompute, device});
  };
  EXPECT_EQ(resources.of_lane[compute(0)], compute(0));
  for (int d : {1, 2, 3}) EXPECT_EQ(resources.of_lane[compute(d)], compute(1));
  EXPECT_EQ(resources.capacity[compute(1)], 2);

  std::vector<LaneWork> work(lanes.size());
  for (int d : {1, 2, 3}) work[compute(d)].busy = Nanos(30);
  EXPECT_EQ(BusiestResource(resources, work), Nanos(45));
  work[compute(0)].busy = Nanos(50);
  EXPECT_EQ(BusiestResource(resources, work), Nanos(50));

  ResourceClock clock(resources);
  EXPECT_EQ(clock.Start(compute(1), Nanos(0), Nanos(100)).end, Nanos(100));
  EXPECT_EQ(clock.Start(compute(2), Nanos(10), Nanos(30)).end, Nanos(40));
  EXPECT_EQ(clock.Start(compute(3), Nanos(20), Nanos(30)).end, Nanos(70));
  EXPECT_EQ(clock.Start(compute(0), Nanos(20), Nanos(30)).end, Nanos(50));
  clock.Free(compute(2), Nanos(60));
  EXPECT_EQ(clock.Start(compute(2), Nanos(60), Nanos(10)).end, Nanos(70));
}

// Three devices with tasks of two threads each, of which four cores run two at a time.
TEST(LaneResourcesTest, TheMachinesCoresCopyAndUpdateAsWell) {
  Plan plan;
  plan.devices.resize(3);
  const command::LaneTable lanes(3);
  const CoreSharing sharing{.devices = {0, 1, 2}, .at_once = 2, .threads = 2};
  const LaneResources resources = ResourcesOfLanes(plan, sharing);
  const int first = lanes.IndexOf({command::LaneKind::kCompute, 0});
  const int updates = lanes.IndexOf({command::LaneKind::kHostCompute, 0});
  std::vector<LaneWork> work(lanes.size());
  const auto of_cores = [&] { return TimesOf(resources, work)[static_cast<size_t>(first)]; };
  work[first].busy = Millis(30);
  work[lanes.IndexOf({command::LaneKind::kCompute, 2})].busy = Millis(10);
  EXPECT_EQ(of_cores(), Millis(20));
  work[lanes.IndexOf({command::LaneKind::kD2H, 1})].busy = Millis(8);  // by one thread
  EXPECT_EQ(of_cores(), Millis(22));
  work[updates].busy = Millis(5);  // by all cores
  EXPECT_EQ(of_cores(), Millis(27));
  work[lanes.IndexOf({command::LaneKind::kHostIo, 0})].busy = Millis(19);  // of the disk
  EXPECT_EQ(of_cores(), Millis(27));
  work[first].commands = 10;  // issued by 0.2 ms of one core each
  EXPECT_EQ(of_cores(), Nanos(27'500'000));
  EXPECT_EQ(BusiestResource(resources, work), of_cores());
  EXPECT_EQ(BusiestResource(ResourcesOfLanes(plan, {{0, 1, 2}, 2}), work), Millis(20));
}

TEST(PlanTest, StashesTheInputOfEveryBackwardGroup) {
  const model::ModelSpec model = dispatch::SmallModel(3);
  Plan plan = dispatch::SmallPlan(model, 1);
  auto boundaries = [&] {
    std::vector<int> result;
    for (const StashSpec& stash : StashesOf(plan)) result.push_back(stash.boundary);
    return result;
  };
  EXPECT_THAT(boundaries(), ElementsAre(1, 2, 3, 4));
  plan.backward_groups = {{{0, 1}, 0}, {{2, 4}, 0}};  // the embedding's output, then boundary 2
  EXPECT_THAT(boundaries(), ElementsAre(1, 2));
  EXPECT_EQ(StashBoundary({{0, 0}, 0}), -1);
}

TEST(PlanTest, MinimalSwapCountsEachLoadAndGradient) {
  const model::ModelSpec model =
      dispatch::SmallModel(1, true);  // blocks: tokens, layer, norm of the head
  const Plan plan = dispatch::SmallPlan(model, 2);
  const MinimalSwap swap = ComputeMinimalSwap(model, plan);
  const Bytes tokens = model.blocks[0].weight_bytes, layer = model.blocks[1].weight_bytes,
              norm = model.blocks[2].weight_bytes;
  // Forward of embedding and layer, fused head with the tied table, backward of the layer.
  EXPECT_EQ(swap.weights, tokens + layer + tokens + norm + layer);
  EXPECT_EQ(swap.gradients, tokens * 2 + layer + norm);
  const Bytes hidden = model::BoundaryBytes(model, 1, 2);
  EXPECT_EQ(swap.stash, hidden * 3);  // boundaries 1 and 2 out, 1 in again
  EXPECT_EQ(swap.boundary_commit, hidden * 2);
  EXPECT_EQ(swap.tokens, Bytes(2 * dispatch::kSmallTokens * 4) * 3);
}

TEST(PlanTest, KeptWeightsAreLoadedOnce) {
  const model::ModelSpec model = dispatch::SmallModel();
  Plan plan = dispatch::SmallPlan(model, 2);
  const Bytes before = ComputeMinimalSwap(model, plan).weights;
  plan.backward_groups[1].keep_weights = true;
  EXPECT_TRUE(CheckPlan(model, plan).ok());
  EXPECT_EQ(KeeperOf(plan, plan.forward_groups[1]), 1);
  EXPECT_EQ(KeeperOf(plan, plan.forward_groups[0]), -1);
  EXPECT_EQ(ComputeMinimalSwap(model, plan).weights, before - model.blocks[1].weight_bytes);
}

TEST(PlanTest, KeptStashesStayOffTheHost) {
  const model::ModelSpec model = dispatch::SmallModel();
  Plan plan = dispatch::SmallPlan(model, 2);
  const Bytes hidden = model::BoundaryBytes(model, 1, 2);
  plan.backward_groups[1].keep_stash = true;
  EXPECT_TRUE(StashesOf(plan)[0].kept);
  EXPECT_FALSE(StashesOf(plan)[1].kept);
  EXPECT_EQ(ComputeMinimalSwap(model, plan).stash, hidden);  // the fused group's, out
  const ArenaLayout layout(model, plan);
  EXPECT_FALSE(layout.HasStash(1));  // its forward reads it where it is kept
  EXPECT_TRUE(layout.IsStashed(2));
  plan.forward_groups[1].devices = 0;  // reads it elsewhere: it may have to pass through the arena
  EXPECT_TRUE(ArenaLayout(model, plan).HasStash(1));
  EXPECT_FALSE(ArenaLayout(model, plan).IsStashed(1));
}

TEST(PlanTest, RefusesToKeepWhatNoForwardLoads) {
  const model::ModelSpec model = dispatch::SmallModel();
  Plan plan = dispatch::SmallPlan(model, 2);
  plan.backward_groups[2].keep_weights = true;  // fused
  EXPECT_THAT(std::string(CheckPlan(model, plan).message()),
              HasSubstr("layers 2 to 2 keeps weights"));
  plan = dispatch::SmallPlan(model, 2);
  plan.backward_groups[1].keep_weights = true;
  plan.forward_groups[1].devices = 0;
  EXPECT_THAT(std::string(CheckPlan(model, plan).message()), HasSubstr("on device 1"));
  plan = dispatch::SmallPlan(model, 2);
  plan.forward_groups.pop_back();
  EXPECT_THAT(std::string(CheckPlan(model, plan).message()), HasSubstr("end before layer 1"));
}

TEST(PlanTest, KeepsActivationsOnlyWithTheirStashAndTheSameForward) {
  const model::ModelSpec model = dispatch::SmallModel();
  Plan plan = dispatch::SmallPlan(model, 2);
  const auto mistake = [&] { return std::string(CheckPlan(model, plan).message()); };
  EXPECT_TRUE(CanKeepActivations(plan, plan.backward_groups[1]));
  plan.backward_groups[1].keep_activations = true;
  EXPECT_THAT(mistake(), HasSubstr("layers 1 to 1 keeps activations (keep_activations), but not"));
  plan.backward_groups[1].keep_stash = true;
  EXPECT_TRUE(CheckPlan(model, plan).ok());
  EXPECT_EQ(ActivationKeeperOf(plan, plan.forward_groups[1]), 1);
  EXPECT_EQ(ActivationKeeperOf(plan, plan.forward_groups[0]), -1);
  plan.microbatches_per_forward_task = 2;
  EXPECT_THAT(mistake(), HasSubstr("forward_span"));
  EXPECT_FALSE(CanKeepActivations(plan, plan.backward_groups[1]));
  plan.microbatches_per_forward_task = 1;
  plan.forward_groups[1].devices = 0;
  EXPECT_THAT(mistake(), HasSubstr("no forward group of these layers runs on device 1"));
  EXPECT_FALSE(CanKeepActivations(plan, plan.backward_groups[1]));
  plan = dispatch::SmallPlan(model, 2);
  plan.backward_groups[0].keep_activations = true;
  EXPECT_THAT(mistake(), HasSubstr("the embedding has none"));
  plan = dispatch::SmallPlan(model, 2);
  plan.backward_groups[2].keep_activations = true;  // fused
  EXPECT_THAT(mistake(), HasSubstr("layers 2 to 2 keeps activations"));
}

TEST(PlanTest, ForwardTasksDivideTheStep) {
  const model::ModelSpec model = dispatch::SmallModel();
  Plan plan = dispatch::SmallPlan(model, 2);
  plan.num_microbatches = 6;
  plan.microbatches_per_forward_task = 3;
  EXPECT_TRUE(CheckPlan(model, plan).ok());
  EXPECT_EQ(plan.num_forwards(), 2);
  const ArenaLayout layout(model, plan);
  const Bytes hidden = model::BoundaryBytes(model, 1, 1);
  EXPECT_EQ(layout.Stash(1, 2) - layout.Stash(1, 0), hidden * 2);  // one after the other
  plan.microbatches_per_forward_task = 4;
  EXPECT_THAT(std::string(CheckPlan(model, plan).message()), HasSubstr("do not divide the 6"));
  plan.microbatches_per_forward_task = 3;
  model::ModelSpec shorter = model;
  for (auto& tensors : shorter.boundaries) {
    if (!tensors.empty()) tensors[0].shape[0] = 1;  // 32 bytes a microbatch: slices not aligned
  }
  EXPECT_THAT(std::string(CheckPlan(shorter, plan).message()), HasSubstr("multiple of 256"));
  model::ModelSpec several = model;
  several.boundaries[1].push_back(several.boundaries[1][0]);
  EXPECT_THAT(std::string(CheckPlan(several, plan).message()), HasSubstr("one tensor"));
}

// No two slots of the arena overlap, and all lie within it.
TEST(ArenaLayoutTest, SlotsAreDisjointAndAligned) {
  for (job::UpdateMode update : {job::UpdateMode::kEager, job::UpdateMode::kDeferred}) {
    const model::ModelSpec model = dispatch::SmallModel(3, true);
    const Plan plan = dispatch::SmallPlan(model, 2, update);
    const ArenaLayout layout(model, plan);
    std::vector<std::pair<Bytes, Bytes>> slots;
    auto add = [&](Bytes begin, Bytes size, int64_t alignment = kSlotAlignment) {
      EXPECT_EQ(begin.count() % alignment, 0);
      slots.emplace_back(begin, begin + size);
    };
    const Bytes hidden = model::BoundaryBytes(model, 1, 1);
    for (int block = 0; block < static_cast<int>(model.blocks.size()); ++block) {
      for (command::ObjectKind kind :
           {command::ObjectKind::kParameter, command::ObjectKind::kMoment1,
            command::ObjectKind::kMoment2}) {
        add(command::PersistentOffset(model, {kind, block, 0}), model.blocks[block].weight_bytes);
      }
      add(layout.Norm(block), Bytes(sizeof(command::NormSlot)), sizeof(command::NormSlot));
    }
    for (int parity : {0, 1}) {
      add(layout.Batch(parity), layout.batch_bytes());
      add(layout.Scalars(parity), Bytes(sizeof(command::StepScalars)),
          sizeof(command::StepScalars));
    }
    add(layout.Loss(), Bytes(sizeof(command::LossSlot)) * 2);
    for (int m : {0, 1}) {
      for (int boundary = 1; boundary < model.num_layers(); ++boundary) {
        ASSERT_TRUE(layout.HasStash(boundary));
        add(layout.Stash(boundary, m), hidden);
      }
      for (int bank = 0; bank < plan.boundary_banks; ++bank) {
        add(layout.BoundaryGradient(bank, m), hidden);
      }
    }
    for (int reference = 0; reference < static_cast<int>(model.references.size()); ++reference) {
      const bool own = layout.ReferenceHasOwnGradientSlot(reference);
      const bool tied = model.blocks[model.references[reference].block].references.size() > 1;
      EXPECT_EQ(own, tied || update == job::UpdateMode::kDeferred);
      if (own)
        add(layout.Gradient(reference),
            model.blocks[model.references[reference].block].weight_bytes);
    }
    if (layout.ring_bytes().count() > 0) add(layout.ring_begin(), layout.ring_bytes());
    std::sort(slots.begin(), slots.end());
    for (size_t i = 0; i < slots.size(); ++i) {
      EXPECT_LE(slots[i].second, i + 1 < slots.size() ? slots[i + 1].first : layout.end());
    }
    EXPECT_EQ(layout.end(), layout.persistent_bytes() + plan.arena_dynamic);
  }
}

command::Command Next(int lane, uint64_t value) {
  command::Command command;
  command.header.lane = static_cast<uint32_t>(lane);
  command.header.signal_value = value;
  return command;
}

TEST(LaneQueueTest, RunsInOrder) {
  command::LaneQueue queue(3);
  EXPECT_TRUE(absl::IsAborted(queue.Push(1, Next(3, 1))));
  ASSERT_TRUE(queue.Start(1).ok());
  ASSERT_TRUE(queue.Push(1, Next(3, 1)).ok());
  ASSERT_TRUE(queue.Push(1, Next(3, 2)).ok());
  EXPECT_EQ(queue.Push(1, Next(3, 4)).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(queue.Push(1, Next(2, 3)).code(), absl::StatusCode::kInternal);
  queue.BeginHead();
  EXPECT_EQ(queue.Head(), nullptr);
  EXPECT_EQ(queue.FinishHead(), 1);
  EXPECT_EQ(queue.Head()->header.signal_value, 2);
}

TEST(LaneQueueTest, QuiesceLetsTheRunningOneFinishUnsignalled) {
  command::LaneQueue queue(0);
  ASSERT_TRUE(queue.Start(4).ok());
  ASSERT_TRUE(queue.Push(4, Next(0, 1)).ok());
  ASSERT_TRUE(queue.Push(4, Next(0, 2)).ok());
  queue.BeginHead();
  queue.Quiesce();
  EXPECT_TRUE(absl::IsAborted(queue.Push(4, Next(0, 3))));
  EXPECT_FALSE(queue.Start(5).ok());  // still running
  EXPECT_EQ(queue.FinishHead(), 0);
  EXPECT_EQ(queue.size(), 0);
  EXPECT_FALSE(queue.Start(4).ok());
  EXPECT_TRUE(queue.Start(5).ok());
  EXPECT_TRUE(queue.Push(5, Next(0, 1)).ok());
}

// "2 of its own" microbatches, "<1 <0": it takes the sums of these shards, ">3": and gives its own.
std::string SumsText(const Plan& plan, const LayerGroup& group) {
  std::string text;
  for (int number = 0; number < group.devices.num_shards(); ++number) {
    const Shard shard = ShardOf(plan, group, number);
    const ShardSum sum = SumOf(plan, group, shard);
    absl::StrAppend(&text, number > 0 ? ", " : "", sum.microbatches);
    for (int taken = 0; taken < sum.taken; ++taken) {
      absl::StrAppend(&text, " <", GiverOf(plan, group, shard, taken));
    }
    if (sum.given_to >= 0) absl::StrAppend(&text, " >", sum.given_to);
  }
  return text;
}

TEST(PlanTest, ShardsOfAPartAddUpInATree) {
  Plan plan;
  plan.replicas = plan.num_microbatches = 16;
  const auto sums = [&](std::initializer_list<int> devices, int parts) -> std::string {
    const LayerGroup group{.layers = {0, 0}, .devices = devices, .gradient_parts = parts};
    return CanAddUp(plan, group, parts) ? SumsText(plan, group) : "cannot";
  };
  EXPECT_EQ(sums({0}, 1), "16");
  EXPECT_EQ(sums({0}, 4), "4");
  EXPECT_EQ(sums({0, 1}, 2), "8, 8");
  EXPECT_EQ(sums({0, 1}, 1), "8 >1, 8 <0");
  EXPECT_EQ(sums({0, 1, 2, 3}, 2), "4 >1, 4 <0, 4 >3, 4 <2");
  EXPECT_EQ(sums({0, 1, 2, 3}, 1), "4 >1, 4 <0 >3, 4 >3, 4 <2 <1");
  EXPECT_EQ(sums({0, 0, 1, 2}, 1), "8 >2, 4 >2, 4 <1 <0");
  EXPECT_EQ(sums({0, 1, 2, 2}, 1), "4 >1, 4 <0 >2, 8 <1");
  EXPECT_EQ(sums({0, 0, 1, 1}, 2), "8, 8");
  EXPECT_EQ(sums({0, 0, 0, 1}, 2), "cannot");
  EXPECT_EQ(sums({0, 0, 0, 1}, 4), "4, 4");
  EXPECT_EQ(sums({0, 1, 1, 2}, 1), "cannot");
}

TEST(PlanTest, DevicesOfOneRootOrOfNoneAddUpWhereAPlanIsSought) {
  Plan plan;
  plan.replicas = plan.num_microbatches = 16;
  plan.devices.resize(4);
  const auto fewest = [&](std::initializer_list<int> devices, std::vector<int> roots) {
    for (size_t d = 0; d < roots.size(); ++d) plan.devices[d].root = roots[d];
    return FewestParts(plan, {.layers = {0, 0}, .devices = devices});
  };
  EXPECT_EQ(fewest({0, 1, 2, 3}, {0, 0, 0, 0}), 1);
  EXPECT_EQ(fewest({0, 1, 2, 3}, {1, 1, 1, 1}), 1);
  EXPECT_EQ(fewest({0, 1, 2, 3}, {1, 1, 2, 2}), 2);
  EXPECT_EQ(fewest({0, 1, 2, 3}, {1, 2, 2, 1}), 4);
  EXPECT_EQ(fewest({0, 1, 2, 3}, {1, 1, 0, 0}), 2);
  EXPECT_EQ(fewest({0, 1, 2, 3}, {1, 0, 0, 1}), 4);
  EXPECT_EQ(fewest({0, 0, 1, 1}, {0, 0, 0, 0}), 1);
  EXPECT_EQ(fewest({0, 0, 0, 1}, {1, 1, 1, 1}), 4);
}

}  // namespace
}  // namespace harmony::plan
