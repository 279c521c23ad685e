// The decisions of the dispatcher as functions of values, by small tables: where a binding lies,
// which way a tensor goes, which head comes next, what each kind of node needs, when steps
// complete.

#include <set>
#include <string>

#include "coordinator/dispatch/costs/duration_memo.h"
#include "coordinator/dispatch/graph/boundary_way.h"
#include "coordinator/dispatch/graph/step_progress.h"
#include "coordinator/dispatch/issue/modelled_clock.h"
#include "coordinator/dispatch/issue/queue_heads.h"
#include "coordinator/dispatch/memory/binding_places.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator/dispatch/small_case.h"

namespace harmony::dispatch {
namespace {

using ::testing::ElementsAre;

TEST(NodeKindsTest, EveryKindHasANameOfItsOwnAndWritesOnItsDevice) {
  std::set<std::string> names;
  for (int kind = 0; kind < kNodeKinds; ++kind) {
    const NodeTraits& traits = TraitsOf(static_cast<NodeKind>(kind));
    EXPECT_TRUE(names.insert(traits.name).second) << traits.name;
    const bool host = command::IsHostLane({traits.lane, 0});
    EXPECT_FALSE(host && traits.writes != FirstWrite::kNothing) << traits.name;
    EXPECT_FALSE(host && traits.reads != LastRead::kNothing) << traits.name;
  }
  EXPECT_FALSE(names.contains(""));
}

TEST(BindingPlacesTest, PositionsTakeTheSlotsInTurn) {
  std::vector<Bytes> places;
  for (int position = 0; position < 5; ++position) {
    places.push_back(SlotOf(Bytes(1000), Bytes(64), 2, position, Bytes(16)));
  }
  EXPECT_THAT(places, ElementsAre(Bytes(1016), Bytes(1080), Bytes(1016), Bytes(1080), Bytes(1016)));
}

TEST(BindingPlacesTest, WhatIsKeptHasPlacesOfItsOwn) {
  const model::ModelSpec model = SmallModel();
  plan::Plan plan = SmallPlan(model, 1);
  plan.backward_groups[1].keep_stash = plan.backward_groups[1].keep_weights = true;
  const KeptLayout kept(model, plan);
  DeviceMemory memory(Bytes(4096));
  GroupExecution execution;
  execution.microbatches = {0, 1};
  execution.blocks = {0, 1};  // block 1 lies where backward group 1 keeps it
  execution.own_blocks = 1;
  execution.keeper = 1;
  execution.outputs = {1, 2};
  execution.output_kept = {true, false};
  execution.output_at = {Bytes(0), Bytes(64)};
  execution.slots = 1;
  execution.in_stride = execution.out_stride = Bytes(128);
  memory.BeginExecution();
  execution.first_weight = memory.AddItem(Bytes(256));
  execution.first_gradient = execution.in = memory.AddItem(Bytes(128));
  execution.out = memory.AddItem(Bytes(128));
  ASSERT_TRUE(memory.Admit());
  const BindingPlaces places(execution, kept, memory);
  EXPECT_EQ(places.Weight(0), memory.offset(execution.first_weight));
  EXPECT_EQ(places.Weight(1), kept.Weights(1, 0, 1));
  EXPECT_EQ(places.Output(1, 0), kept.Stash(1, 1));
  EXPECT_EQ(places.Output(1, 1), memory.offset(execution.out) + Bytes(64));
  execution.input = 1;
  execution.input_kept = true;
  EXPECT_EQ(places.Input(0), kept.Stash(1, 0));
}

TEST(BoundaryBankTest, GroupsTakeTheBanksInTurnFromTheTop) {
  plan::Plan plan;
  plan.backward_groups.resize(6);
  plan.boundary_banks = 2;
  std::vector<int> banks;
  for (int group = 5; group > 0; --group) banks.push_back(BoundaryBank(plan, group));
  EXPECT_THAT(banks, ElementsAre(0, 1, 0, 1, 0));
  plan.boundary_banks = 9;  // no more than there are groups that pass something on
  EXPECT_EQ(BoundaryBank(plan, 1), 4);
}

TEST(WayTest, TheEarlierOneUnlessItCostsTheHostsLinksMore) {
  const auto way = [](bool can_send, int direct, int by_host, int host_work) {
    return ChooseWay({can_send, Nanos(direct), Nanos(by_host), Nanos(host_work)});
  };
  EXPECT_EQ(way(true, 10, 20, 10), Way::kDirect);
  EXPECT_EQ(way(true, 20, 20, 0), Way::kDirect);
  EXPECT_EQ(way(true, 30, 20, 10), Way::kDirect);  // ahead by no more than its copies take
  EXPECT_EQ(way(true, 31, 20, 10), Way::kByHost);
  EXPECT_EQ(way(false, 10, 20, 10), Way::kByHost);  // the consumer has no room
}

// Copies between the devices take `peer` units, all others one.
class PeerCosts : public UnitCosts {
 public:
  explicit PeerCosts(int64_t peer) : peer_(peer) {}
  Nanos Duration(const command::Command& command) const override {
    const auto* copy = std::get_if<command::Transfer>(&command.body);
    const bool between =
        copy != nullptr && copy->source.device >= 0 && copy->destination.device >= 0;
    return between ? Nanos(peer_) : UnitCosts::Duration(command);
  }

 private:
  const int64_t peer_;
};

// Of the outputs that a consumer on the other device takes, how many go there directly; and when
// the step ends.
std::pair<int, Nanos> DirectOnesAndEnd(const plan::Plan& plan, const model::ModelSpec& model,
                                       int64_t peer) {
  const PeerCosts costs(peer);
  Dispatcher dispatcher(model, plan, costs, {.end_step = 1});
  EXPECT_TRUE(dispatcher.BeginGeneration(1, {}).ok());
  int direct = 0;
  const std::vector<command::Command> commands = dispatcher.NextCommands().value();
  for (const command::Command& command : commands) {
    direct += command::LaneTable(2).LaneAt(static_cast<int>(command.header.lane)).kind ==
              command::LaneKind::kP2P;
  }
  Dispatcher dry(model, plan, costs, {.end_step = 1});
  EXPECT_TRUE(dry.BeginGeneration(1, {}).ok());
  return {direct, dry.DryRun()->step_ends[0]};
}

// Four groups pass on two microbatches each; both ways are open to all but some.
TEST(WayTest, OutputsTakeTheWayThatIsEarlier) {
  const model::ModelSpec model = SmallModel();
  for (job::UpdateMode update : {job::UpdateMode::kEager, job::UpdateMode::kDeferred}) {
    const plan::Plan plan = SmallPlan(model, 2, update);
    const auto [fast, fast_end] = DirectOnesAndEnd(plan, model, 1);
    const auto [slow, slow_end] = DirectOnesAndEnd(plan, model, 1000);
    EXPECT_EQ(fast, 8);
    EXPECT_EQ(slow, 0);
    EXPECT_LT(fast_end, slow_end);
    EXPECT_LT(slow_end, fast_end + Nanos(16));  // a copy more for each, at most; not 1000 units
  }
}

TEST(HeadStartTest, TheEarliestComesFirstThenWhatDoesNotYieldThenTheOlder) {
  const HeadStart early{Nanos(5), false, 9, 0}, late{Nanos(6), false, 1, 1},
      older{Nanos(5), false, 8, 2}, yields{Nanos(5), true, 2, 3};
  EXPECT_TRUE(early.ComesBefore(late));
  EXPECT_FALSE(late.ComesBefore(early));
  EXPECT_TRUE(older.ComesBefore(early));
  EXPECT_FALSE(early.ComesBefore(early));
  EXPECT_TRUE(early.ComesBefore(yields));
  EXPECT_FALSE(yields.ComesBefore(early));
  EXPECT_TRUE(yields.ComesBefore(late));
}

TEST(SumEdgeTest, FirstAndLastTaskOfAReplicaAndTheLastOfItsPart) {
  GroupExecution execution;
  execution.microbatches = {0, 1, 2, 3};
  plan::Plan plan;
  plan.num_microbatches = 4;
  const auto edges = [&](int replicas, int parts) {
    plan.replicas = replicas;
    execution.sum.microbatches = plan.num_microbatches / parts;
    std::vector<int> bits;  // set 1, added up 2, stored 4
    for (int position = 0; position < 4; ++position) {
      bits.push_back(static_cast<int>(EdgeOf(plan, execution, position)));
    }
    return bits;
  };
  EXPECT_THAT(edges(1, 1), ElementsAre(1, 0, 0, 6));
  EXPECT_THAT(edges(2, 1), ElementsAre(1, 2, 1, 6));
  EXPECT_THAT(edges(2, 2), ElementsAre(1, 6, 1, 6));
  EXPECT_THAT(edges(4, 1), ElementsAre(3, 3, 3, 7));
  EXPECT_THAT(edges(4, 2), ElementsAre(3, 7, 3, 7));
  execution.sum.given_to = 1;  // the sum goes to another device, which stores it
  EXPECT_THAT(edges(4, 1), ElementsAre(3, 3, 3, 3));
}

TEST(ModelledClockTest, LanesThatShareALinkTakeTurns) {
  const model::ModelSpec model = SmallModel();
  const plan::Plan plan = SmallPlan(model, 1);
  ModelledClock clock(plan::ResourcesOfLanes(plan, {}));
  const command::LaneTable lanes(1);
  const int bulk = lanes.IndexOf({command::LaneKind::kH2DBulk, 0});
  const int stream = lanes.IndexOf({command::LaneKind::kH2DStream, 0});
  const int out = lanes.IndexOf({command::LaneKind::kD2H, 0});
  EXPECT_EQ(clock.Issue(bulk, Nanos(10), Nanos(100)), Nanos(110));
  EXPECT_EQ(clock.FinishIfIssued(stream, Nanos(20), Nanos(5)), Nanos(115));
  EXPECT_EQ(clock.FinishIfIssued(stream, Nanos(0), Nanos(5)), Nanos(5));  // was there before
  EXPECT_EQ(clock.FinishIfIssued(out, Nanos(20), Nanos(5)), Nanos(25));
  EXPECT_EQ(clock.Issue(stream, Nanos(20), Nanos(5)), Nanos(115));
  EXPECT_EQ(clock.free_at(bulk), Nanos(110));
  EXPECT_EQ(clock.FinishOf(stream, 1), Nanos(115));
}

TEST(ModelledClockTest, DevicesThatShareCoresTakeTurns) {
  const model::ModelSpec model = SmallModel();
  const plan::Plan plan = SmallPlan(model, 4);
  ModelledClock clock(plan::ResourcesOfLanes(plan, {{0, 1, 3}, 2}));
  const command::LaneTable lanes(4);
  const auto issue = [&](int device, int64_t ready) {
    return clock.Issue(lanes.IndexOf({command::LaneKind::kCompute, device}), Nanos(ready),
                       Nanos(100));
  };
  EXPECT_EQ(issue(0, 0), Nanos(100));
  EXPECT_EQ(issue(1, 10), Nanos(110));
  EXPECT_EQ(issue(2, 20), Nanos(120));  // has a core of its own
  EXPECT_EQ(issue(3, 30), Nanos(200));
  EXPECT_EQ(issue(0, 0), Nanos(210));  // its lane is free at 100, a core at 110
}

TEST(StepProgressTest, CompletesStepsWithTheLastOfTheirUpdates) {
  const auto node = [](NodeKind kind, int64_t step, uint64_t value) {
    Node result;
    result.kind = kind;
    result.step = step;
    result.value = value;
    return result;
  };
  StepProgress progress;
  progress.Begin(3);
  EXPECT_TRUE(progress.RoomForNext());
  for (int64_t step : {3, 4}) {
    progress.BeginNext();
    progress.Added(node(NodeKind::kUpdate, step, 0));
    progress.Added(node(NodeKind::kUpdate, step, 0));
  }
  EXPECT_FALSE(progress.RoomForNext());  // step 3 is not issued
  for (uint64_t value : {1, 2}) {
    progress.Resolved(node(NodeKind::kUpdate, 3, value));
    progress.AfterUpdate(node(NodeKind::kUpdate, 3, value));
  }
  EXPECT_TRUE(progress.RoomForNext());
  EXPECT_EQ(progress.next(), 5);
  progress.OnUpdatesCompleted(1);
  EXPECT_EQ(progress.completed(), 3);
  progress.OnUpdatesCompleted(2);
  EXPECT_EQ(progress.completed(), 4);
}

}  // namespace
}  // namespace harmony::dispatch
