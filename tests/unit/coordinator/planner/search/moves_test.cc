#include "coordinator/planner/search/moves.h"

#include "coordinator/planner/search/boundaries.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator/dispatch/small_case.h"

namespace harmony::planner {
namespace {

using model::LayerRange;
using plan::DeviceSet;
using plan::LayerGroup;
using ::testing::ElementsAre;

std::vector<LayerRange> LayersOf(const std::vector<LayerGroup>& groups) {
  std::vector<LayerRange> layers;
  for (const LayerGroup& group : groups) layers.push_back(group.layers);
  return layers;
}

// Six layers on three devices; the last two are fused.
plan::Plan SixLayers(std::vector<LayerGroup> forward, std::vector<LayerGroup> backward) {
  plan::Plan plan = dispatch::SmallPlan(dispatch::SmallModel(4), 3);
  plan.forward_groups = std::move(forward);
  plan.backward_groups = std::move(backward);
  return plan;
}

TEST(CutTest, DividesAGroupWhereItIs) {
  std::vector<LayerGroup> groups = {{{0, 1}, 0}, {{2, 4}, {1, 2}}};
  EXPECT_TRUE(Cut(3, &groups));
  EXPECT_THAT(LayersOf(groups), ElementsAre(LayerRange{0, 1}, LayerRange{2, 2}, LayerRange{3, 4}));
  EXPECT_EQ(groups[1].devices, (DeviceSet{1, 2}));
  EXPECT_EQ(groups[2].devices, (DeviceSet{1, 2}));
  for (int at : {0, 2, 3, 5}) EXPECT_FALSE(Cut(at, &groups)) << at;
  EXPECT_EQ(groups.size(), 3u);
}

// Wherever the boundaries of forward groups were before.
TEST(MatchTest, AForwardGroupHasTheLayersAndTheDevices) {
  const std::vector<std::vector<LayerGroup>> forwards = {
      {{{0, 3}, 0}},                            // the layers lie within one
      {{{0, 0}, 0}, {{1, 1}, 2}, {{2, 3}, 0}},  // and end in the midst of another
      {{{0, 0}, 0}, {{1, 2}, 2}, {{3, 3}, 0}},  // they are one
  };
  for (const std::vector<LayerGroup>& forward : forwards) {
    plan::Plan plan = SixLayers(forward, {{{0, 0}, 0}, {{1, 2}, 1}, {{3, 3}, 0}, {{4, 5}, 1}});
    const DeviceSet devices{2, 1};
    Match(1, devices, {.weights = true, .activations = true}, &plan);
    EXPECT_THAT(LayersOf(plan.forward_groups),
                ElementsAre(LayerRange{0, 0}, LayerRange{1, 2}, LayerRange{3, 3}));
    EXPECT_EQ(plan.forward_groups[0].devices, DeviceSet(0));
    EXPECT_EQ(plan.forward_groups[1].devices, devices);
    EXPECT_EQ(plan.forward_groups[2].devices, DeviceSet(0));
    EXPECT_EQ(plan.backward_groups[1].devices, devices);
    FitForward(&plan);
    const LayerGroup& group = plan.backward_groups[1];
    EXPECT_TRUE(group.keep_weights && group.keep_activations);
  }
}

TEST(MatchTest, UpToTheFusedGroup) {
  plan::Plan plan = SixLayers({{{0, 1}, 0}, {{2, 3}, 1}}, {{{0, 0}, 0}, {{1, 3}, 0}, {{4, 5}, 1}});
  Match(1, 2, {.weights = true}, &plan);
  EXPECT_THAT(LayersOf(plan.forward_groups), ElementsAre(LayerRange{0, 0}, LayerRange{1, 3}));
  EXPECT_EQ(plan.forward_groups[1].devices, DeviceSet(2));
}

// What was kept for a forward group that is no longer the same is not kept.
TEST(MatchTest, OthersKeepWhatTheyStillCan) {
  plan::Plan plan = SixLayers({{{0, 1}, 0}, {{2, 3}, 1}}, {{{0, 1}, 0}, {{2, 3}, 1}, {{4, 5}, 1}});
  for (int g : {0, 1}) plan.backward_groups[g].keep_weights = true;
  Match(1, 2, {.weights = true}, &plan);
  FitForward(&plan);
  EXPECT_TRUE(plan.backward_groups[0].keep_weights);
  EXPECT_TRUE(plan.backward_groups[1].keep_weights);
  plan.backward_groups[0].devices = 1;
  FitForward(&plan);
  EXPECT_FALSE(plan.backward_groups[0].keep_weights);
}

}  // namespace
}  // namespace harmony::planner
