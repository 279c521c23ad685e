// A chain that is no built-in model goes through arena layout, planner, dispatcher and simulator:
// several tensors of different types on a boundary, uneven layers, inputs that skip ahead, a block
// that two layers use.

#include "absl/strings/str_cat.h"
#include "common/model/model_sizes.h"
#include "common/plan/arena_layout.h"
#include "coordinator/dispatch/costs/analytic_costs.h"
#include "coordinator/planner/planner.h"
#include "gtest/gtest.h"
#include "tests/sim/simulator/simulation.h"
#include "tests/support/quick_search.h"

namespace harmony::sim {
namespace {

constexpr int kLayers = 7;

model::ParamBlock Block(int layer, int64_t numbers) {
  model::ParamBlock block;
  block.name = absl::StrCat("block.", layer);
  block.owner_layer = layer;
  model::TensorSpec matrix, scale;
  matrix.name = block.name + ".weight";
  matrix.weight.dtype = DType::kBF16;
  matrix.shape = {numbers, 100};
  scale.name = block.name + ".scale";
  scale.shape = {numbers};
  model::AddTensor(block, matrix);
  model::AddTensor(block, scale);
  return block;
}

model::ModelSpec AnyChain() {
  model::ModelSpec model;
  model.name = "any";
  model.labels_per_sample = 1;
  model.inputs = {{{"image", DType::kU8, {3, 11, 11}}, 0, {0}},
                  {{"mask", DType::kBool, {37}}, 0, {1, 2, 4}},
                  {{"label", DType::kI64, {}}, 10, {kLayers - 1}}};
  model.boundaries.resize(kLayers + 1);
  for (int layer = 0; layer < kLayers; ++layer) {
    model.layers.push_back({layer, layer, {}});
    const int64_t width = 1 + (layer * 5) % 4;  // uneven
    if (layer > 0) model.boundaries[layer] = {{"x", DType::kF32, {width, 500}}};
    model::LayerCost& cost = model.costs.emplace_back();
    cost.name = cost.work = absl::StrCat("layer ", layer);
    cost.forward_flops = 1e6 * static_cast<double>(width);
    if (layer + 1 < kLayers) {
      cost.recompute = model::Recompute::kUnlessKept;
      cost.kept_tensors = {model::BytesBySamples::Of(KiB(3) * width)};
    }
    cost.bound.forward = model::BytesBySamples::Of(KiB(4) * width, KiB(1));
    cost.bound.kept = model::BytesBySamples::Of(KiB(3) * width);
    cost.bound.backward = model::BytesBySamples::Of(KiB(8) * width, KiB(1));
    cost.bound.keeping_forward = model::BytesBySamples::Of(KiB(1) * width);
    cost.bound.kept_backward = model::BytesBySamples::Of(KiB(5) * width, KiB(1));
    cost.expected = cost.bound;
    // Layer 3 has no block of its own, but uses that of layer 1.
    model::AddReference(model, layer,
                        layer == 3 ? 1 : model::AddBlock(model, Block(layer, 20 * width)));
  }
  // A value of layer 1 that layer 5 reads, and numbers that have no gradient.
  for (int b : {2, 3, 4, 5}) model.boundaries[b].push_back({"skipped", DType::kBF16, {301}});
  model.boundaries[4].push_back({"routes", DType::kI64, {5}});
  model::StoreGradientsAs(DType::kBF16, model);
  return model;
}

TEST(AnyChainTest, TensorsOfABoundaryHaveTheirOwnTypesAndSizes) {
  const model::ModelSpec model = AnyChain();
  EXPECT_EQ(model::BoundaryBytes(model, 4, 1), Bytes(2048 + 768 + 40));
  plan::Plan plan;
  plan.num_microbatches = 3;
  plan.microbatch_size = 2;
  plan.update = job::UpdateMode::kDeferred;
  plan.backward_groups = {{{0, 3}, 0}, {{4, 6}, 0}};
  plan.forward_groups = {{{0, 3}, 0}};
  plan.devices.resize(1);
  const plan::ArenaLayout layout(model, plan);
  EXPECT_EQ(layout.Input(0, 1, 2) - layout.Input(0, 1, 1), Bytes(2 * 37));
  EXPECT_EQ(layout.Input(1, 2, 0).count() % kSlotAlignment, 0);
  EXPECT_EQ(layout.Stash(4, 1) - layout.Stash(4, 0),
            model::BoundaryBytes(model, 4, 2).AlignUp(256));
  EXPECT_FALSE(plan::LargerForwardTasksAllowed(model, plan));
}

TEST(AnyChainTest, IsPlannedAndDispatchedThroughDeaths) {
  const model::ModelSpec model = AnyChain();
  job::JobSpec job;
  job.global_batch_size = 12;
  job.micro_batch_size = 2;
  plan::MachineSpec machine;
  machine.devices = *plan::ParseDevices("sim*2:mem=1MiB,flops=1G,h2d=1GB/s,d2h=1GB/s,p2p=1GB/s");
  for (plan::DeviceSpec& device : machine.devices) device.memory = KiB(192);
  planner::PlannerOptions options;
  options.search = testing_support::kQuickSearch;
  const absl::StatusOr<planner::PlanResult> result =
      planner::MakePlan(model, job, machine, options);
  ASSERT_TRUE(result.ok()) << result.status();
  const plan::Plan& plan = result->plan;
  EXPECT_GT(plan.backward_groups.size(), 1u) << DebugString(plan);
  EXPECT_EQ(plan.microbatches_per_forward_task, 1);
  const dispatch::AnalyticCosts costs(model, plan, machine.devices);
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SimOptions sim;
    sim.seed = seed;
    sim.end_step = 3;
    sim.save_steps = 2;
    sim.jitter = true;
    sim.kills = static_cast<int>(seed % 4);
    sim.check_derivable = seed == 1;
    const SimResult run = Simulate(model, plan, costs, sim);
    ASSERT_TRUE(run.status.ok()) << "seed " << seed << ": " << run.status;
    if (sim.kills > 0) continue;
    const plan::MinimalSwap minimal = plan::ComputeMinimalSwap(model, plan);
    const auto moved = [&](command::TrafficClass traffic) {
      return Bytes(run.moved_bytes[static_cast<size_t>(traffic)]);
    };
    EXPECT_EQ(moved(command::TrafficClass::kWeights), minimal.weights * sim.end_step);
    EXPECT_EQ(moved(command::TrafficClass::kGradients), minimal.gradients * sim.end_step);
    EXPECT_EQ(moved(command::TrafficClass::kStash), minimal.stash * sim.end_step);
    EXPECT_EQ(moved(command::TrafficClass::kTokens), minimal.tokens * sim.end_step);
  }
}

}  // namespace
}  // namespace harmony::sim
