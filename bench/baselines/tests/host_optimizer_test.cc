// Small cases, worked out by hand, of the systems whose optimizer is on the host.

#include <gtest/gtest.h>

#include "bench/baselines/tests/toy.h"

namespace harmony::baselines {
namespace {

constexpr int kPlenty = 1000;

TEST(ZeroOffloadTest, MovesGradientsAndWeightsOnceAStep) {
  // 2 microbatches of 9 s each, the last gradient leaves 1 s after that; 3 updates of 10 s, and the
  // last weights take 1 s back. The first two forwards of the next step, 2 s, run by then.
  const Toy toy(3, 1, kPlenty, 2, {.h2d = 1, .d2h = 1, .update = 10});
  const Outcome outcome = toy.Run(ZeroOffload, {.microbatches = 2});
  EXPECT_EQ(Units(outcome, Traffic::kWeights), 3);
  EXPECT_EQ(Units(outcome, Traffic::kGradients), 3);
  EXPECT_EQ(outcome.step, Seconds(18 + 1 + 30 + 1 - 2));
  // Weights, moments and gradients of 3 layers.
  EXPECT_EQ(Units(outcome.host_peak.count()), 12);
  // With the update one step late the devices run all the time, but for the gradients and weights.
  const Outcome delayed = toy.Run(ZeroOffloadDelayed, {.microbatches = 2});
  EXPECT_LT(delayed.step, outcome.step);
  EXPECT_GE(delayed.step, Seconds(30));
}

TEST(ZeroOffloadTest, DividesGradientsAndWeightsAmongDevices) {
  // Each of 2 devices sends half of 3 gradients to the host and half to the other, and so back.
  const Outcome outcome = Toy(3, 2, kPlenty, 2).Run(ZeroOffload, {.microbatches = 1});
  EXPECT_EQ(Units(outcome, Traffic::kWeights), 3);
  EXPECT_EQ(Units(outcome, Traffic::kGradients), 3);
  EXPECT_EQ(Units(outcome.peer_bytes), 6);
}

TEST(ZeroOffloadTest, NeedsRoomForAllWeights) {
  // 3 weights, and all gradients added up: 6 units; leaving each time: one gradient, 4 units.
  EXPECT_EQ(Units(Toy(3, 1, 5, 2).Run(ZeroOffload, {.microbatches = 2}).missing.count()), 1);
  const Toy toy(3, 1, 3, 2);
  const Outcome outcome =
      toy.Run(ZeroOffload, {.gradients = GradientPolicy::kLeaveEachTime, .microbatches = 2});
  EXPECT_EQ(outcome.obstacle, Obstacle::kDeviceMemory);
  EXPECT_EQ(Units(outcome.missing.count()), 1);
}

TEST(FsdpOffloadTest, LoadsWeightsForEachTask) {
  // Each of 2 microbatches: 2 forwards and 3 backwards.
  const Outcome outcome = Toy(3, 1, kPlenty, 2).Run(FsdpOffload, {.microbatches = 2});
  EXPECT_EQ(Units(outcome, Traffic::kWeights), 10);
  EXPECT_EQ(Units(outcome, Traffic::kGradients), 3);
}

// Two devices, 2 microbatches of 3 layers: of a gradient a half goes to the other device, of a
// weight a half comes from there, and the other half from the host.
TEST(FsdpOffloadTest, ReducesGradientsOnceWhereThereIsRoom) {
  const Toy toy(3, 2, kPlenty, 4);
  const auto run = [&](GradientPolicy gradients) {
    return toy.Run(FsdpOffload, {.gradients = gradients, .microbatches = 2});
  };
  const Outcome each = run(GradientPolicy::kLeaveOnce), once = run(GradientPolicy::kReduceOnce);
  // Both devices: 2 microbatches of 5 halves of weights; 2 times 3 halves of gradients, or once.
  EXPECT_EQ(Units(each.peer_bytes), 10 + 6);
  EXPECT_EQ(Units(once.peer_bytes), 10 + 3);
  EXPECT_EQ(Units(each, Traffic::kGradients), 3);
  EXPECT_EQ(Units(once, Traffic::kGradients), 3);
  // While the first backward of layer 0 runs: its weights and 3 gradients; shares of 3 gradients,
  // 1.5 units, its weights and its own whole gradient.
  EXPECT_EQ(once.device_peak, kUnit * 4);
  EXPECT_EQ(each.device_peak.count(), kUnit.count() * 7 / 2);
}

TEST(FsdpOffloadTest, KeepsWeightsForTheBackwardWhereThereIsRoom) {
  const Toy toy(3, 1, kPlenty, 2);
  const auto run = [&](GradientPolicy gradients) {
    return toy.Run(FsdpOffload,
                   {.gradients = gradients, .reshards_after_forward = false, .microbatches = 2});
  };
  // Loaded once a step, for they stay for the next microbatch.
  EXPECT_EQ(Units(run(GradientPolicy::kLeaveOnce), Traffic::kWeights), 3);
  EXPECT_EQ(Units(run(GradientPolicy::kReduceOnce), Traffic::kWeights), 3);
  EXPECT_EQ(run(GradientPolicy::kReduceOnce).device_peak, kUnit * 6);
}

// Two devices, one microbatch; forward 1 s, backward 2 s, last layer 3 s; half a weight from the
// other device and half a gradient to it take 1 s each.
//
//   compute: F0 1-2  F1 2-3  B2 3-6  B1 6-8  B0 8-10
//   gathers: W0 0-1  W1 1-2  W2 2-3, then again W1 and W0 long before their backwards
//   reduces: G2 6-7  G1 8-9  G0 10-11
//
// A gather does not wait for the reduction that was asked for before it.
TEST(FsdpOffloadTest, GathersWhileItReduces) {
  const Outcome outcome = Toy(3, 2, kPlenty, 2, {.p2p = 2}).Run(FsdpOffload, {.microbatches = 1});
  EXPECT_EQ(outcome.step, Seconds(11));
}

TEST(ZeroOffloadTest, RecomputesSomeOfTheLayers) {
  // 5 layers, of which the first 3 recompute: layer 3 alone keeps its 4 units at the turn.
  const Toy toy(5, 1, kPlenty, 1, {}, /*boundary=*/1, /*saved=*/4);
  const auto peak = [&](int quarters) {
    return Units(toy.Run(ZeroOffload, {.recomputed_quarters = quarters}).device_peak.count());
  };
  EXPECT_EQ(peak(2), peak(4) + 4);
}

// Weights and gradients of 5 layers need 10 units, at the end of the backward; at the turn, with
// one gradient, there is room for what one layer saves, 4 units. All layers recomputed: 4 forwards
// and backwards, the last layer, and 4 s; one spares a second.
TEST(ZeroOffloadTest, TriesToRecomputeSomeLayers) {
  const Toy toy(5, 1, 10, 1, {.recompute = 1}, /*boundary=*/0, /*saved=*/4);
  Baseline baseline{.name = "toy",
                    .schedule = ZeroOffload,
                    .gradients = {GradientPolicy::kLeaveOnce},
                    .may_recompute_some = true};
  EXPECT_EQ(toy.Run(baseline).step, Seconds(15 + 3));
  baseline.may_recompute_some = false;
  EXPECT_EQ(toy.Run(baseline).step, Seconds(15 + 4));
}

// The devices hold their halves of 3 weights, which are refreshed once a step, and have the other
// halves from each other: once a step, too, for there is room for all.
TEST(ZeroInfinityTest, KeepsSharesOnTheDevices) {
  const Toy toy(3, 2, kPlenty, 4);
  const Outcome outcome = toy.Run(ZeroInfinity, {.weights_on_host = false, .microbatches = 2});
  EXPECT_EQ(Units(outcome, Traffic::kWeights), 3);
  // And 2 microbatches' halves of 3 gradients.
  EXPECT_EQ(Units(outcome.peer_bytes), 3 + 6);
  // Halves and wholes of 3 weights, halves of 3 gradients and one whole.
  EXPECT_EQ(Units(outcome.device_peak.count()), 7);
}

// As of zero-offload above: 18 s of computing, a gradient leaves in 1 s, 3 updates of 10 s, 1 s for
// a weight. The gradient of the last layer is there after 14 s, and weights of layer 0 are what the
// host makes last: 14 + 1 + 30 + 1. Where it waits for all gradients, it makes them first, and the
// forwards of layers 0 and 1 run before weights 2 are there.
TEST(SuperOffloadTest, UpdatesInTheBackwardUnlessGradientsAreClipped) {
  Toy toy(3, 1, kPlenty, 2, {.h2d = 1, .d2h = 1, .update = 10});
  EXPECT_EQ(toy.Run(SuperOffload, {.microbatches = 2}).step, Seconds(46));
  EXPECT_EQ(toy.Run(ZeroInfinity, {.microbatches = 2}).step, Seconds(48));
  toy.job.max_grad_norm = 1;
  EXPECT_EQ(toy.Run(SuperOffload, {.microbatches = 2}).step, Seconds(48));
}

TEST(ZeroInfinityTest, KeepsWeightsWhereThereIsRoom) {
  // With room for all: each is loaded once a step. With room for 5 units, of which gradients come
  // to take 3: the first microbatch loads each once, and its last gradient drives weights 2 out;
  // the second one finds 0 and 1, loads 2 in the place of 0, and 0 again.
  EXPECT_EQ(Units(Toy(3, 1, kPlenty, 2).Run(ZeroInfinity, {.microbatches = 2}), Traffic::kWeights),
            3);
  EXPECT_EQ(Units(Toy(3, 1, 5, 2).Run(ZeroInfinity, {.microbatches = 2}), Traffic::kWeights),
            3 + 2);
}

}  // namespace
}  // namespace harmony::baselines
