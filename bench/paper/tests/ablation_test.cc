// Each optimisation off by itself, of plans in round numbers.

#include "bench/paper/ablation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "coordinator/planner/fit/plan_builder.h"
#include "coordinator/planner/timing/evaluation.h"

namespace harmony::paper {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kUnit = 1 << 20;
constexpr int kMicrobatches = 4;

// Six equal layers of one unit of weights, and the loss: a forward of a microbatch takes 1 s, a
// backward with its recompute 3 s, a tensor between two layers has a quarter of a unit, and a layer
// saves half of one.
published::LayerProfile Profile() {
  published::LayerProfile profile;
  profile.model = "toy";
  profile.forward.microbatch = profile.backward.microbatch = {1, 4};
  for (int layer = 0; layer < 7; ++layer) {
    const int64_t weights = layer < 6 ? kUnit : 0, between = kUnit / 4;
    profile.param_bytes.push_back(weights);
    profile.grad_bytes.push_back(weights);
    profile.buffer_bytes.push_back(0);
    profile.optimizer_state_bytes.push_back(2 * weights);
    profile.update_time_s.push_back(0.1);
    profile.input_bytes_per_sample.push_back(between);
    profile.output_bytes_per_sample.push_back(layer < 6 ? between : 0);
    profile.forward.time_s.push_back({1, 4});
    profile.backward.time_s.push_back({3, 12});
    profile.forward.peak_bytes.push_back({weights + 2 * between, weights + 8 * between});
    profile.backward.peak_bytes.push_back(
        {2 * weights + 3 * between + kUnit / 2, 2 * weights + 12 * between + 2 * kUnit});
  }
  return profile;
}

struct Case {
  // A unit takes 1 s over the host's link, and from device to device.
  explicit Case(int gpus, int units_of_memory = 40) {
    published::Machine machine;
    machine.gpus = gpus;
    machine.memory_bytes = units_of_memory * kUnit;
    machine.swap_bytes_per_s = static_cast<double>(gpus * kUnit);
    machine.peer_bytes_per_s = kUnit;
    imported = *published::ImportModel(Profile(), machine, gpus, kMicrobatches);
    const planner::PlanBuilder builder(imported.model, imported.job, imported.machine, 1);
    plan = builder.Blank();
    const int last = gpus - 1;
    plan.forward_groups = {{{0, 1}, 0}, {{2, 3}, last}};
    plan.backward_groups = {{{0, 1}, 0}, {{2, 3}, last}, {{4, 6}, 0}};
    planner::StepExecutions step;
    EXPECT_TRUE(builder.Complete(&plan, &step));
    estimate = *planner::EvaluatePlan(imported.model, plan, *imported.costs(plan));
  }
  int64_t BytesOf(command::TrafficClass traffic) const {
    return estimate.bytes[static_cast<size_t>(traffic)];
  }
  int64_t host_link_bytes() const {
    int64_t sum = 0;
    for (int64_t bytes : estimate.bytes) sum += bytes;
    return sum;
  }

  published::ImportedModel imported;
  plan::Plan plan;
  planner::Estimate estimate;
};

const Ablated& Of(const std::vector<Ablated>& rows, absl::string_view what) {
  static const Ablated none;
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const Ablated& r) { return r.what == what; });
  EXPECT_NE(row, rows.end()) << what;
  return row == rows.end() ? none : *row;
}

TEST(AblationTest, NamesWhatThePlanUses) {
  const Case two(2), one(1);
  std::vector<std::string> names;
  for (const Ablated& row : SwitchOff(two.imported, two.plan)) {
    EXPECT_TRUE(row.fits) << row.what;
    names.push_back(row.what);
  }
  EXPECT_THAT(names,
              ElementsAre("grouping of microbatches", "just-in-time updates", "P2P", "prefetch",
                          "the fused last group", "balanced groups (equally many layers)",
                          "separate forward and backward packs"));
  EXPECT_EQ(SwitchOff(one.imported, one.plan).size(), names.size() - 1);  // no P2P
}

// Weights of 4 layers in forward and of 6 in backward, gradients of 6: once for each microbatch.
TEST(AblationTest, WithoutGroupingEachMicrobatchMovesWeightsAndGradients) {
  const Case one(1);
  const int64_t weights = one.BytesOf(command::TrafficClass::kWeights);
  const int64_t gradients = one.BytesOf(command::TrafficClass::kGradients);
  EXPECT_GE(weights, 10 * kUnit);
  EXPECT_GE(gradients, 6 * kUnit);
  const std::vector<Ablated> rows = SwitchOff(one.imported, one.plan);
  const Ablated& off = Of(rows, "grouping of microbatches");
  EXPECT_EQ(off.host_link_bytes,
            one.host_link_bytes() + (kMicrobatches - 1) * (weights + gradients));
  // The link from the host alone takes 40 s, the computing of the whole step 96.
  EXPECT_GT(off.step, one.estimate.step);
}

TEST(AblationTest, WithoutPeerToPeerTensorsPassTheHost) {
  Case two(2);
  EXPECT_GT(two.estimate.peer_bytes, 0);
  const auto rows = SwitchOff(two.imported, two.plan);
  const Ablated& off = Of(rows, "P2P");
  EXPECT_GT(off.host_link_bytes, two.host_link_bytes());
  EXPECT_LE(off.host_link_bytes, two.host_link_bytes() + 2 * two.estimate.peer_bytes);
  // Nothing took the way that is forbidden, nor does it where stashes stay on the devices.
  EXPECT_LT(off.step, two.estimate.step * 2);
  two.plan.backward_groups[1].keep_stash = true;
  ASSERT_TRUE(plan::CanKeepStash(two.plan, two.plan.backward_groups[1]));
  EXPECT_EQ(Of(SwitchOff(two.imported, two.plan), "P2P").step, off.step);
}

TEST(AblationTest, WithoutPrefetchTasksWaitForTheirWeights) {
  const Case two(2);
  EXPECT_GT(Of(SwitchOff(two.imported, two.plan), "prefetch").step, two.estimate.step);
}

// Layers 4 and 5 of 4 microbatches keep what they computed where there is room. In 10 units there
// is none, and they run forward twice: 8 s more of device 0, part of which it waited before.
TEST(AblationTest, WithoutTheFusedGroupItsLayersAreLikeOthers) {
  for (const int units : {40, 10}) {
    const Case two(2, units);
    const std::vector<Ablated> rows = SwitchOff(two.imported, two.plan);
    const Ablated& off = Of(rows, "the fused last group");
    ASSERT_TRUE(off.fits);
    const double more = (off.step - two.estimate.step).seconds();
    EXPECT_GE(more, units == 40 ? 0 : 4);
    EXPECT_LE(more, units == 40 ? 0 : 8);
  }
}

// On all devices each group has a gradient of each.
TEST(AblationTest, SwitchesOffInDataParallelPlans) {
  Case two(2);
  two.imported.job.virtual_replicas = 2;
  const planner::PlanBuilder builder(two.imported.model, two.imported.job, two.imported.machine, 1,
                                     {planner::DeviceSets::kAll, 2});
  plan::Plan plan = builder.Blank();
  const plan::DeviceSet all{0, 1};
  plan.forward_groups = {{{0, 3}, all}};
  plan.backward_groups = {{{0, 3}, all}, {{4, 6}, all}};
  planner::StepExecutions step;
  ASSERT_TRUE(builder.Complete(&plan, &step));
  for (const Ablated& row : SwitchOff(two.imported, plan)) EXPECT_TRUE(row.fits) << row.what;
}

}  // namespace
}  // namespace harmony::paper
