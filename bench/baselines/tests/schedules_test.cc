// Small cases of each schedule, worked out by hand, and what must hold of all of them.

#include <gtest/gtest.h>

#include <algorithm>

#include "bench/baselines/tests/toy.h"

namespace harmony::baselines {
namespace {

constexpr int kPlenty = 1000;

TEST(DpSwapTest, MovesNothingWhereEverythingFits) {
  // Two microbatches of two forwards (1 s), the last layer (3 s) and two backwards (2 s).
  const Outcome outcome = Toy(3, 1, kPlenty, 2).Run(DpSwap, {.microbatches = 2});
  EXPECT_EQ(outcome.step, Seconds(18));
  EXPECT_EQ(outcome.host_link_bytes, 0);
  EXPECT_EQ(outcome.peer_bytes, 0);
  // 3 layers with weights, two moments and a gradient.
  EXPECT_EQ(Units(outcome.device_peak.count()), 12);
}

// 3 layers, 2 microbatches, no activations, room for 4 units: of a layer, weights W, gradient G and
// moments K (2 units). What is resident after each task, the least recently used first, * dirty;
// the step begins with what the last update of the step before left.
//
//   task         in              out             resident
//                                                W2* K2*
//   forward 0    W0                              W2* K2* W0
//   forward 1    W1              W2              K2* W0 W1
//   backward 2   W2              K2              W0 W1 W2 G2*
//   backward 1                   (W0 dropped)    W2 G2* W1 G1*
//   backward 0   W0              G2              W1 G1* W0 G0*     (W2 dropped)
//   forward 0                                    W1 G1* G0* W0
//   forward 1                                    G1* G0* W0 W1
//   backward 2   W2 G2           G1 G0           W0 W1 W2 G2*
//   backward 1   G1              (W0 dropped)    W2 G2* W1 G1*
//   backward 0   W0 G0           G2              W1 G1* W0 G0*     (W2 dropped)
//   update 0     K0              G1              W0* K0*           (W1 dropped, G0 done with)
//   update 1     G1 W1 K1        W0 K0           W1* K1*
//   update 2     G2 W2 K2        W1 K1           W2* K2*
//
// In: W 8, G 5, K 6. Out: W 3, G 5, K 6. With links that take 1 s for a unit from the host and
// nothing else that takes time, a step takes the 19 s of what comes in.
TEST(DpSwapTest, SwapsByLeastRecentUse) {
  const Outcome outcome = Toy(3, 1, 4, 2, {.forward = 0, .backward = 0, .head = 0, .h2d = 1})
                              .Run(DpSwap, {.microbatches = 2});
  EXPECT_TRUE(outcome.fits()) << outcome.reason;
  EXPECT_EQ(Units(outcome, Traffic::kWeights), 8 + 3);
  EXPECT_EQ(Units(outcome, Traffic::kGradients), 5 + 5);
  EXPECT_EQ(Units(outcome, Traffic::kOptimizerState), 6 + 6);
  EXPECT_EQ(outcome.step, Seconds(19));
  EXPECT_EQ(outcome.binds, "link from the host, device 0 100%");
}

TEST(DpSwapTest, ReducesGradientsInARing) {
  // Each of 4 devices sends 2 * 3/4 of 3 gradients. At 4 s a unit: the last layer's gradient is
  // there after 1 + 1 + 3 s, the others 2 s later each; a reduction takes 6 s: 5 + 3 * 6.
  const Outcome outcome = Toy(3, 4, kPlenty, 4, {.p2p = 4}).Run(DpSwap, {.microbatches = 1});
  EXPECT_EQ(outcome.peer_bytes, 4 * 3 * 3 * kUnit.count() / 2);
  EXPECT_EQ(outcome.step, Seconds(23));
}

TEST(DpSwapTest, KeepsWhatAutogradSavesOnlyWithoutRecompute) {
  // At the turn: 3 layers' 4 units, the inputs of layers 1 and 2, and what layers 0 and 1 saved.
  const Toy toy(3, 1, kPlenty, 1, {}, /*boundary=*/1, /*saved=*/5);
  const auto peak = [&](Recompute recompute) {
    return Units(toy.Run(DpSwap, {.recompute = recompute}).device_peak.count());
  };
  EXPECT_EQ(peak(Recompute::kNothing) - peak(Recompute::kLayers), 10);
}

TEST(GpipeSwapTest, FillsAndDrainsThePipeline) {
  // Two stages: layers 0-1, and 2-4 of which the last takes no time. Forward 2 s, backward 4 s: 4
  // microbatches and one more for filling and draining, 6 s each.
  const Toy toy(5, 2, kPlenty, 4, {.head = 0});
  const Outcome outcome = toy.Run(GpipeSwap, {.microbatches = 4});
  EXPECT_EQ(outcome.step, Seconds(30));
  EXPECT_EQ(outcome.host_link_bytes, 0);
}

// Stage 0 has layers 0 and 1, stage 1 the last one, which its room for 5 units is just enough for:
// two versions a and b of the weights W, a gradient G and moments K (2 units). Of two layers stage
// 0 can hold half. What is resident there after each task of a step that trains a, the least
// recently used first, * dirty; a step has 2 microbatches, of which the second one of the next step
// comes before this one's last backward.
//
//   task           in          out      resident
//                                       W1a K1* W1b*
//   forward 0 (a)  W0a                  W1a K1* W1b* W0a
//   forward 1                           K1* W1b* W0a W1a
//   backward 1                 K1       W1b* W0a W1a G1*
//   backward 0                          W1b* W1a G1* W0a G0*
//   forward 0 (b)  W0b         W1b      W1a G1* W0a G0* W0b
//   forward 1      W1b                  G1* W0a G0* W0b W1b         (W1a dropped)
//   backward 1     W1a                  G0* W0b W1b W1a G1*         (W0a dropped)
//   backward 0     W0a                  W1b W1a G1* W0a G0*         (W0b dropped)
//   update 0       W0b K0      G1       W0b W0a* K0*      (both W1 dropped, G0 is done with)
//   update 1       G1 W1b K1   W0a K0   W1b K1* W1a*      (W0b dropped, W1a made anew)
//
// In: W 7, G 1, K 4. Out: W 2, G 1, K 4.
TEST(OneForwardOneBackwardSwapTest, SwapsByLeastRecentUse) {
  const Toy toy(3, 2, 5, 4, {.head = 6});
  const Outcome outcome = toy.Run(OneForwardOneBackwardSwap, {.microbatches = 2, .steps = 4});
  EXPECT_TRUE(outcome.fits()) << outcome.reason;
  EXPECT_EQ(Units(outcome, Traffic::kWeights), 7 + 2);
  EXPECT_EQ(Units(outcome, Traffic::kGradients), 1 + 1);
  EXPECT_EQ(Units(outcome, Traffic::kOptimizerState), 4 + 4);
}

TEST(OneForwardOneBackwardSwapTest, NeverDrainsAndKeepsTwoVersions) {
  const Toy toy(5, 2, kPlenty, 4, {.head = 0});
  const Outcome outcome = toy.Run(OneForwardOneBackwardSwap, {.microbatches = 4});
  EXPECT_EQ(outcome.step, Seconds(24));
  // Of the second stage: 3 layers with two versions, two moments and a gradient.
  EXPECT_EQ(Units(outcome.device_peak.count()), 15);
}

// Two stages, 2 microbatches, a boundary of 1 unit, layers that save 5. Stage 0 has layers 0 and 1,
// stage 1 layers 2 to 4, the last of no time: forward 2 s, backward 4 s; where layers keep what
// they save a backward takes as long (the toy knows no recompute within a layer), and recomputing a
// stage takes its 2 s of forward.
//
//   stage 0: F0 0-2 F1 2-4                 B1 10-14 R0 14-16 B0 16-20
//   stage 1:        F0 2-4  F1 4-6 B1 6-10 R0 10-12 B0 12-16
//
// Stage 0 recomputes microbatch 0 while it waits for its gradient; microbatch 1, whose backward is
// the task after its forward, is not recomputed.
TEST(GpipeSwapTest, RecomputesAStageButOfTheLastMicrobatch) {
  const Toy toy(5, 2, kPlenty, 2, {.head = 0}, /*boundary=*/1, /*saved=*/5);
  const Outcome outcome = toy.Run(GpipeSwap, {.recompute = Recompute::kStage, .microbatches = 2});
  EXPECT_EQ(outcome.step, Seconds(20));
}

// The same pipeline. Stage 1 needs most while layer 3 of the microbatch that comes back first, the
// last of M, goes backward: 3 weights, 3 times two moments and 2 gradients; of the other M - 1
// microbatches what waits; of its own the inputs of layers 2 and 3 and both gradients of layer 3.
// With layers recomputed, 3 inputs of a microbatch wait; with the stage recomputed one does, but
// both layers' saved tensors are there, 10 units.
TEST(GpipeSwapTest, KeepsLessOfManyMicrobatchesWhereAStageIsRecomputed) {
  for (const int microbatches : {2, 10}) {
    const Toy toy(5, 2, kPlenty, microbatches, {.head = 0}, /*boundary=*/1, /*saved=*/5);
    const auto peak = [&](Recompute recompute) {
      return Units(toy.Run(GpipeSwap, {.recompute = recompute, .microbatches = microbatches})
                       .device_peak.count());
    };
    EXPECT_EQ(peak(Recompute::kLayers), 11 + 3 * (microbatches - 1) + 4);
    EXPECT_EQ(peak(Recompute::kStage), 11 + (microbatches - 1) + 4 + 10);
  }
}

// One forward ahead on stage 0, none on stage 1, whose backward always comes next: stage 0
// recomputes 2 s for each of 4 microbatches, so that its 8 s for each bind.
TEST(OneForwardOneBackwardSwapTest, RecomputesNothingOnTheLastStage) {
  const Toy toy(5, 2, kPlenty, 4, {.head = 0}, /*boundary=*/1, /*saved=*/5);
  const Setting setting{.recompute = Recompute::kStage, .microbatches = 4};
  const Outcome outcome = toy.Run(OneForwardOneBackwardSwap, setting);
  EXPECT_EQ(outcome.step, Seconds(4 * 8));
}

// As GPipe fills and drains, 4 microbatches and one more of 6 s, but of one version: 3 layers with
// weights, two moments and a gradient.
TEST(OneForwardOneBackwardFlushSwapTest, DrainsEachStepAndKeepsOneVersion) {
  const Toy toy(5, 2, kPlenty, 4, {.head = 0});
  const Outcome outcome = toy.Run(OneForwardOneBackwardFlushSwap, {.microbatches = 4});
  EXPECT_EQ(outcome.step, Seconds(30));
  EXPECT_EQ(Units(outcome.device_peak.count()), 12);
}

// The same with layers that save 10 units each, but the last. 1F1B needs most on stage 0 while
// layer 1 goes backward: 2 layers' weights, moments and gradients, 8 units, and all that 2
// microbatches saved. GPipe does on stage 1, while layer 3 of the first microbatch does: 3 layers'
// weights and moments and 2 gradients, 11 units, and what 4 microbatches saved.
TEST(OneForwardOneBackwardFlushSwapTest, KeepsFewerMicrobatchesThanGpipe) {
  const Toy toy(5, 2, kPlenty, 4, {.head = 0}, /*boundary=*/0, /*saved=*/10);
  const auto peak = [&](Schedule schedule) {
    const Setting setting{.recompute = Recompute::kNothing, .microbatches = 4};
    return Units(toy.Run(schedule, setting).device_peak.count());
  };
  EXPECT_EQ(peak(OneForwardOneBackwardFlushSwap), 8 + 2 * 20);
  EXPECT_EQ(peak(GpipeSwap), 11 + 4 * 20);
}

// 4 layers of 3 s on 3 devices: two stages, 3 layers on two devices (9 s over 2) and the last
// alone.
TEST(PipelineTest, BalancesReplicatedStages) {
  const Toy toy(4, 3, kPlenty, 4);
  const LayerCosts costs(toy.model, toy.job, toy.machine, toy.costs, 1);
  const std::vector<Stage> stages = BalancedStages(costs, {.stages = 2, .replicas = 4});
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[0].layers, (model::LayerRange{0, 2}));
  EXPECT_EQ(stages[0].replicas, 2);
  EXPECT_EQ(stages[1].layers, (model::LayerRange{3, 3}));
  EXPECT_EQ(stages[1].first_device, 2);
  EXPECT_EQ(stages[1].replicas, 1);
}

TEST(PipelineTest, BalancesStagesByTime) {
  const Toy toy(5, 2, kPlenty, 1, {.head = 12});  // layers of 3 s, the last of 12
  const LayerCosts costs(toy.model, toy.job, toy.machine, toy.costs, 1);
  const std::vector<Stage> stages = BalancedStages(costs, {});
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[0].layers, (model::LayerRange{0, 3}));
  EXPECT_EQ(stages[1].layers, (model::LayerRange{4, 4}));
}

// 3 devices, 2 layers of 1 s forward and 2 s backward, and the last of 12 s, 2 microbatches a step.
// In two stages, the last layer on two devices, which take a microbatch each:
//
//   stage 0:          F0 0-2 F1 2-4             B0 14-18 B1 18-22
//   stage 1, first:          0: 2-14
//   stage 1, second:                1: 4-16
//
// The two exchange their layer's gradient, 1 unit each. In three stages the last has both
// microbatches: 2 s to fill, 24 s, and 4 s to drain.
TEST(OneForwardOneBackwardFlushSwapTest, GivesAHeavyStageSeveralDevices) {
  const Toy toy(3, 3, kPlenty, 2, {.head = 12});
  const Outcome alone = toy.Run(OneForwardOneBackwardFlushSwap, {.microbatches = 2});
  EXPECT_EQ(alone.step, Seconds(30));
  EXPECT_EQ(alone.peer_bytes, 0);
  const Outcome shared = toy.Run(OneForwardOneBackwardFlushSwap, {.stages = 2, .microbatches = 2});
  EXPECT_EQ(shared.step, Seconds(22));
  EXPECT_EQ(Units(shared.peer_bytes), 2);
  // Tuning finds it.
  const std::vector<Baseline>& all = AllBaselines();
  const auto row = std::find_if(all.begin(), all.end(), [](const Baseline& baseline) {
    return baseline.name == "1f1b-flush-swap";
  });
  EXPECT_EQ(toy.Run(*row).step, Seconds(22));
}

// Whatever shares a stage, no task is missing: devices compute for 4 layers of 3 s and the last of
// 3 for each microbatch.
TEST(OneForwardOneBackwardTest, RunsEachMicrobatchOnceOnReplicatedStages) {
  for (const Schedule schedule : {OneForwardOneBackwardSwap, OneForwardOneBackwardFlushSwap}) {
    for (int devices = 2; devices <= 6; ++devices) {
      for (int stages = 2; stages < devices; ++stages) {
        for (int microbatches = 1; microbatches <= 7; ++microbatches) {
          const Toy toy(5, devices, kPlenty, microbatches);
          const LayerCosts costs(toy.model, toy.job, toy.machine, toy.costs, 1);
          const Setting setting{.stages = stages, .microbatches = microbatches, .steps = 3};
          Simulation simulation(costs);
          schedule(setting, &simulation);
          const int steps = schedule == OneForwardOneBackwardSwap ? 4 : 3;
          Nanos sum;
          for (int step = 0; step < steps; ++step) {
            for (const Nanos busy : simulation.timeline.BusyOf(step)) sum += busy;
          }
          EXPECT_EQ(sum, Seconds(15) * (steps * microbatches))
              << devices << " devices, " << stages << " stages, " << microbatches;
        }
      }
    }
  }
}

TEST(AllBaselinesTest, GivenWhatTheyLackTheyFit) {
  for (const Baseline& baseline : AllBaselines()) {
    for (int devices : {1, 2, 4}) {
      for (int memory = 1; memory < 24; memory += 2) {
        Toy toy(6, devices, memory, 8, {.h2d = 1, .d2h = 1, .p2p = 1, .update = 1}, 1, 2);
        Outcome outcome = toy.Run(baseline);
        if (outcome.fits()) {
          EXPECT_LE(outcome.device_peak, kUnit * memory) << baseline.name;
          continue;
        }
        ASSERT_EQ(outcome.obstacle, Obstacle::kDeviceMemory) << baseline.name;
        EXPECT_FALSE(outcome.reason.empty());
        for (plan::DeviceSpec& device : toy.machine.devices) device.memory += outcome.missing;
        outcome = toy.Run(baseline);
        EXPECT_TRUE(outcome.fits()) << baseline.name << ": " << outcome.reason;
      }
    }
  }
}

TEST(AllBaselinesTest, NeverTakeLessThanTheirWork) {
  for (const Baseline& baseline : AllBaselines()) {
    for (int devices : {1, 2, 4}) {
      const Outcome outcome =
          Toy(6, devices, 40, 8, {.h2d = 1, .d2h = 1, .p2p = 1, .update = 1}, 1, 2).Run(baseline);
      ASSERT_TRUE(outcome.fits()) << baseline.name << ": " << outcome.reason;
      // 5 forwards, 5 backwards and the last layer of 8 samples.
      EXPECT_GE(outcome.step.seconds() * devices, 8 * (5 * 3 + 3) - 1e-6) << baseline.name;
      EXPECT_LE(outcome.busiest_share, 1 + 1e-9) << baseline.name;
      // Systems whose optimizer is on the host send each gradient and get each weight.
      if (baseline.updates_on_host()) {
        EXPECT_GE(Units(outcome, Traffic::kGradients), 6) << baseline.name;
        EXPECT_GE(Units(outcome, Traffic::kWeights), 6) << baseline.name;
      }
    }
  }
}

TEST(AllBaselinesTest, MoveTheSameBytesOnDemandInNoLessTime) {
  for (const Schedule schedule :
       {DpSwap, GpipeSwap, OneForwardOneBackwardSwap, OneForwardOneBackwardFlushSwap}) {
    const Toy toy(6, 2, 14, 8, {.h2d = 1, .d2h = 1, .p2p = 1}, 1, 2);
    const Outcome ahead = toy.Run(schedule, {.microbatches = 4});
    const Outcome on_demand = toy.Run(schedule, {.microbatches = 4, .paging = {.lookahead = 0}});
    EXPECT_GT(ahead.host_link_bytes, 0);
    EXPECT_EQ(ahead.bytes, on_demand.bytes);
    EXPECT_LE(ahead.step, on_demand.step);
  }
}

// The best over both ways is never worse than writing back ahead alone, and where devices share no
// link that is never worse than writing back when room is needed: nothing waits for more, and bytes
// and their order are the same.
TEST(AllBaselinesTest, TakeNoLongerWhereTheyMayWriteBackAhead) {
  int faster = 0;
  for (const Baseline& baseline : AllBaselines()) {
    if (!baseline.may_write_back_ahead) continue;
    for (int devices : {1, 2, 4}) {
      for (const bool shared : {false, true}) {
        Toy toy(6, devices, 14, 8, {.h2d = 1, .d2h = 1, .p2p = 1}, 1, 2);
        for (plan::DeviceSpec& device : toy.machine.devices) device.root = shared ? "switch" : "";
        Baseline needed = baseline;
        needed.may_write_back_ahead = false;
        const Outcome best = toy.Run(baseline), late = toy.Run(needed);
        ASSERT_TRUE(best.fits()) << best.reason;
        if (!shared) {
          EXPECT_LE(best.step, late.step) << baseline.name;
        }
        faster += best.step < late.step ? 1 : 0;
      }
    }
  }
  EXPECT_GT(faster, 0);
}

TEST(AllBaselinesTest, SayWhatDoesNotDivide) {
  for (const Baseline& baseline : AllBaselines()) {
    const Outcome outcome = Toy(6, 4, kPlenty, 6).Run(baseline);
    EXPECT_EQ(outcome.fits(), !baseline.data_parallel) << baseline.name;
    if (!outcome.fits()) {
      EXPECT_EQ(outcome.reason, "a batch of 6 does not divide over 4 devices");
    }
  }
}

TEST(AllBaselinesTest, LackHostMemoryWhereThatIsLittle) {
  Toy toy(6, 1, kPlenty, 4);
  toy.machine.host_memory = kUnit * 23;  // weights, gradients and moments take 24
  for (const Baseline& baseline : AllBaselines()) {
    if (!baseline.updates_on_host()) continue;
    const Outcome outcome = toy.Run(baseline);
    EXPECT_EQ(outcome.obstacle, Obstacle::kHostMemory) << baseline.name;
    EXPECT_EQ(outcome.missing, kUnit);
  }
}

TEST(AllBaselinesTest, SayTheHostLacksMemoryWhereSomeSizeFitsTheDevices) {
  // Microbatches of 1 fit a device with 8 units, those of 8 lack a few; of the host nothing fits.
  Toy toy(6, 1, 8, 8, {}, /*boundary=*/1);
  toy.job.micro_batch_size = 0;
  toy.machine.host_memory = Bytes(1);
  for (const Baseline& baseline : AllBaselines()) {
    if (baseline.updates_on_host()) continue;
    const Outcome outcome = toy.Run(baseline);
    EXPECT_EQ(outcome.obstacle, Obstacle::kHostMemory) << baseline.name << ": " << outcome.reason;
  }
}

TEST(SimulateTest, MakesLongStepsOfShortOnes) {
  // 3000 microbatches of 9 s; only some are simulated.
  const Toy toy(3, 1, kPlenty, 3000);
  EXPECT_EQ(toy.Run(DpSwap, {.microbatches = 3000}).step, Seconds(27000));
}

// An update of 10000 s binds while microbatches are few, their 9 s each where they are all there.
TEST(SimulateTest, SeesWhatBindsOnlyWithAllMicrobatches) {
  const Toy toy(3, 1, kPlenty, 3000, {.update = 10000.0 / 3});
  const Outcome outcome = toy.Run(ZeroOffloadDelayed, {.microbatches = 3000});
  EXPECT_NEAR(outcome.step.seconds(), 27000, 10);
  EXPECT_EQ(outcome.binds, "compute, device 0 100%");
}

}  // namespace
}  // namespace harmony::baselines
