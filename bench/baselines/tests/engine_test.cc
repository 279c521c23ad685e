// The cache of a device and the timeline, by tables.

#include <gtest/gtest.h>

#include "bench/baselines/tests/toy.h"

namespace harmony::baselines {
namespace {

using command::LaneKind;

class DeviceMemoryTest : public ::testing::Test {
 protected:
  // A unit from the host takes 3 s, back to it 2 s.
  DeviceMemoryTest()
      : toy_(2, 1, 4, 1, {.h2d = 3, .d2h = 2}),
        costs_(toy_.model, toy_.job, toy_.machine, toy_.costs, 1),
        timeline_(1, costs_.resources()) {
    timeline_.BeginStep();
  }
  static Nanos Ten() { return Seconds(10); }

  const Toy toy_;
  const LayerCosts costs_;
  Timeline timeline_;
};

TEST_F(DeviceMemoryTest, BringsInOnDemandOrOneTaskAhead) {
  // Two tasks of 10 s, each with a tensor of its own. On demand: 3 + 10 + 3 + 10. One ahead: the
  // second tensor comes while the first task runs.
  for (const auto& [lookahead, seconds] : {std::pair(0, 26), std::pair(1, 23)}) {
    Timeline timeline(1, costs_.resources());
    timeline.BeginStep();
    DeviceMemory memory(costs_, 0, kUnit * 2, {.lookahead = lookahead}, &timeline);
    const Tensor a = memory.Add({.size = kUnit, .on_host = true});
    const Tensor b = memory.Add({.size = kUnit, .on_host = true});
    memory.Run({.duration = Ten(), .reads = {a}});
    const Operation last = memory.Run({.duration = Ten(), .reads = {b}});
    timeline.Run();
    EXPECT_EQ(timeline.EndOf(last), Seconds(seconds)) << "lookahead " << lookahead;
  }
}

TEST_F(DeviceMemoryTest, WritesDirtyTensorsBackAndDropsCleanOnes) {
  // Room for one tensor. a is made (10 s), written back (2 s), b comes (3 s) and is read (10 s), is
  // dropped, a comes back (3 s) and is read (10 s).
  DeviceMemory memory(costs_, 0, kUnit, {}, &timeline_);
  const Tensor a = memory.Add({.size = kUnit});
  const Tensor b = memory.Add({.size = kUnit, .traffic = Traffic::kWeights, .on_host = true});
  memory.Run({.duration = Ten(), .creates = {a}});
  memory.Run({.duration = Ten(), .reads = {b}});
  const Operation last = memory.Run({.duration = Ten(), .reads = {a}});
  timeline_.Run();
  EXPECT_EQ(timeline_.EndOf(last), Seconds(38));
  const StepBytes& bytes = timeline_.BytesOf(0);
  EXPECT_EQ(Units(bytes.of(Traffic::kActivations)), 2);  // out and back
  EXPECT_EQ(Units(bytes.of(Traffic::kWeights)), 1);
  EXPECT_EQ(memory.peak(), kUnit);
  EXPECT_EQ(memory.host_peak(), kUnit);
}

// Room for two tensors. a and b are made (10 s each), then c is brought in in the place of a. When
// room is needed: a is written back when the second task begins (10 s to 12 s), c comes until 15 s,
// and then b in the place of c, which is dropped. On demand: a is written back from 20 s to 22 s, c
// comes until 25 s. Ahead: a is written back from 10 s to 12 s, whatever asks for room, and on
// demand c comes from 20 s to 23 s.
TEST_F(DeviceMemoryTest, WritesBackAheadWhatWillBeEvicted) {
  for (const auto& [lookahead, ahead, seconds] :
       {std::tuple(1, false, 30), std::tuple(1, true, 30), std::tuple(0, false, 35),
        std::tuple(0, true, 33)}) {
    Timeline timeline(1, costs_.resources());
    timeline.BeginStep();
    const Paging paging{.lookahead = lookahead, .writes_back_ahead = ahead};
    DeviceMemory memory(costs_, 0, kUnit * 2, paging, &timeline);
    const Tensor a = memory.Add({.size = kUnit});
    const Tensor b = memory.Add({.size = kUnit});
    const Tensor c = memory.Add({.size = kUnit, .on_host = true});
    memory.Run({.duration = Ten(), .creates = {a}});
    memory.Run({.duration = Ten(), .creates = {b}});
    const Operation last = memory.Run({.duration = Ten(), .reads = {c}});
    timeline.Run();
    EXPECT_EQ(timeline.EndOf(last), Seconds(seconds)) << lookahead << ahead;
    EXPECT_EQ(timeline.BytesOf(0).host_links(), 2 * kUnit.count());
  }
}

TEST_F(DeviceMemoryTest, EvictsTheLeastRecentlyUsed) {
  DeviceMemory memory(costs_, 0, kUnit * 2, {}, &timeline_);
  const Tensor a = memory.Add({.size = kUnit, .on_host = true});
  const Tensor b = memory.Add({.size = kUnit, .on_host = true});
  const Tensor c = memory.Add({.size = kUnit, .on_host = true});
  memory.Run({.reads = {a}});
  memory.Run({.reads = {b}});
  memory.Run({.reads = {a}});
  memory.Run({.reads = {c}});
  EXPECT_TRUE(memory.resident(a));
  EXPECT_FALSE(memory.resident(b));
}

TEST_F(DeviceMemoryTest, SaysHowMuchATaskLacks) {
  DeviceMemory memory(costs_, 0, kUnit * 3, {}, &timeline_);
  const Tensor fixed = memory.Add({.size = kUnit, .on_host = true, .evictable = false});
  const Tensor a = memory.Add({.size = kUnit * 2, .on_host = true});
  memory.Run({.what = "first", .reads = {fixed}});
  memory.Run({.what = "second", .reads = {a}, .scratch = kUnit});
  ASSERT_TRUE(memory.shortage().has_value());
  EXPECT_EQ(memory.shortage()->what, "second");
  EXPECT_EQ(memory.shortage()->missing(), kUnit);
}

// By operation, those that have ended when it begins.
std::vector<std::vector<bool>> EndedBefore(const Timeline& timeline) {
  const auto count = static_cast<size_t>(timeline.num_operations());
  std::vector<std::vector<bool>> ended(count, std::vector<bool>(count));
  for (size_t operation = 0; operation < count; ++operation) {
    for (Operation wait : timeline.WaitsOf(static_cast<Operation>(operation))) {
      const auto before = static_cast<size_t>(wait);
      ended[operation][before] = true;
      for (size_t o = 0; o < before; ++o) {
        if (ended[before][o]) ended[operation][o] = true;
      }
    }
  }
  return ended;
}

// Who carries the list out may overwrite what an operation takes, and finds there what it uses.
TEST(RecordingTest, OperationsWaitForAllThatWorkedWithTheirPagesBefore) {
  struct Case {
    Schedule schedule;
    Recompute recompute;
  };
  for (const auto& [schedule, recompute] :
       {Case{DpSwap, Recompute::kNothing}, Case{DpSwap, Recompute::kLayers},
        Case{GpipeSwap, Recompute::kStage}, Case{OneForwardOneBackwardSwap, Recompute::kLayers}}) {
    const Toy toy(4, 2, 7, 8, {.h2d = 3, .d2h = 2, .p2p = 1}, /*boundary=*/1, /*saved=*/1);
    const LayerCosts costs(toy.model, toy.job, toy.machine, toy.costs, 1);
    Recording recording;
    Simulation simulation(costs, &recording);
    schedule({.recompute = recompute, .microbatches = 4, .steps = 2, .paging = {.page = 128}},
             &simulation);
    const std::vector<std::vector<bool>> ended = EndedBefore(simulation.timeline);
    // By device and page: who has used it since it was taken, and as what.
    std::vector<std::vector<std::pair<Stay, std::vector<Operation>>>> pages(
        2, std::vector<std::pair<Stay, std::vector<Operation>>>(
               static_cast<size_t>((kUnit * 7).count() / 128), {kNoStay, {}}));
    int reused = 0;
    const auto use = [&](Operation operation, Stay stay, bool takes) {
      const StayPlace& place = recording.place(stay);
      for (const Extent& extent : place.extents) {
        for (int64_t at = 0; at < extent.size.count(); at += 128) {
          auto& [owner, users] = pages[static_cast<size_t>(place.device)]
                                      [static_cast<size_t>((extent.offset.count() + at) / 128)];
          if (takes) {
            for (Operation user : users) {
              ++reused;
              EXPECT_TRUE(ended[static_cast<size_t>(operation)][static_cast<size_t>(user)])
                  << operation << " takes what " << user << " uses";
            }
            owner = stay;
            users.clear();
          }
          EXPECT_EQ(owner, stay) << operation;
          users.push_back(operation);
        }
      }
    };
    for (Operation operation = 0; operation < simulation.timeline.num_operations(); ++operation) {
      const Action& action = recording.At(operation);
      for (const Action::Use& of : action.uses) {
        // Written back ahead, a tensor leaves when its place is taken.
        use(operation, of.stay, of.made);
      }
      if (action.scratch != kNoStay) use(operation, action.scratch, /*takes=*/true);
    }
    EXPECT_GT(reused, 100);
  }
}

TEST(TimelineTest, DevicesOfARootTakeTurnsOnTheirLink) {
  Toy toy(2, 2, 4, 2, {.h2d = 3});
  for (const bool shared : {false, true}) {
    if (shared) toy.machine.devices[0].root = toy.machine.devices[1].root = "switch";
    const LayerCosts costs(toy.model, toy.job, toy.machine, toy.costs, 1);
    Timeline timeline(2, costs.resources());
    timeline.BeginStep();
    Operation last = kNoOperation;
    for (int device : {0, 1}) {
      last =
          timeline.AddCopy({LaneKind::kH2DBulk, device}, Seconds(3), kUnit, Traffic::kWeights, {});
    }
    timeline.Run();
    EXPECT_EQ(timeline.EndOf(last), Seconds(shared ? 6 : 3));
  }
}

}  // namespace
}  // namespace harmony::baselines
