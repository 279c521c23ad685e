#include "coordinator/planner/search/placement.h"

#include "coordinator/planner/search/moves.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace harmony::planner {
namespace {

using plan::DeviceSet;
using ::testing::ElementsAre;

// Three single devices that take turns, a pair, and all of them.
MoveRules ThreeDevices() {
  MoveRules rules;
  SetDeviceChoices({0, 1, 2, {0, 1}, {0, 1, 1, 2}}, &rules);
  return rules;
}

// Three layers, each a group; the last one's backward is fused with its forward.
plan::Plan ThreeLayers() {
  plan::Plan plan;
  plan.devices.resize(3);
  for (int layer = 0; layer < 3; ++layer) {
    plan.backward_groups.push_back({{layer, layer}, 0});
    if (layer < 2) plan.forward_groups.push_back({{layer, layer}, 0});
  }
  return plan;
}

// In the order of a step: forward 0, forward 1, fused 2, backward 1, backward 0.
std::vector<DeviceSet> DevicesOf(plan::Plan& plan) {
  std::vector<DeviceSet> sets;
  for (const plan::LayerGroup* group : InOrder(&plan)) sets.push_back(group->devices);
  return sets;
}

TEST(PlacementTest, SingleDevicesTakeTurns) {
  const MoveRules rules = ThreeDevices();
  EXPECT_EQ(rules.turns, 3u);
  EXPECT_EQ(Turn(rules, 4), DeviceSet(1));
  plan::Plan plan = ThreeLayers();
  TakeTurns(rules, 2, &plan);
  EXPECT_THAT(DevicesOf(plan), ElementsAre(2, 0, 1, 2, 0));
  WrapAround(rules, 1, &plan.backward_groups);
  EXPECT_THAT(DevicesOf(plan), ElementsAre(2, 0, 0, 2, 1));
}

TEST(PlacementTest, WhereThereIsOneSetAllHaveIt) {
  MoveRules rules;
  SetDeviceChoices({{0, 1, 2, 3}}, &rules);
  EXPECT_EQ(rules.turns, 1u);
  EXPECT_EQ(Turn(rules, 7), (DeviceSet{0, 1, 2, 3}));
}

TEST(PlacementTest, AGroupOnSeveralDevicesIsNotTurned) {
  const MoveRules rules = ThreeDevices();
  plan::LayerGroup group{{0, 0}, 2};
  RotateBy(rules, 2, &group);
  EXPECT_EQ(group.devices, DeviceSet(1));
  group.devices = {0, 1};
  RotateBy(rules, 2, &group);
  EXPECT_EQ(group.devices, (DeviceSet{0, 1}));
}

TEST(PlacementTest, TheEndsOfAStepAreSpreadOverSeveralDevices) {
  const MoveRules rules = ThreeDevices();
  const DeviceSet all{0, 1, 1, 2};
  plan::Plan plan = ThreeLayers();
  TakeTurns(rules, 0, &plan);  // 0 1 2 0 1
  EXPECT_TRUE(Spread(rules, 1, 2, 1, &plan));
  EXPECT_THAT(DevicesOf(plan), ElementsAre(all, 1, 2, all, all));
  EXPECT_FALSE(Spread(rules, 1, 2, 1, &plan)) << "they are";
  // After the two larger sets come the turns: a group has the one of its place in the step.
  EXPECT_TRUE(Spread(rules, 1, 1, 2, &plan));
  EXPECT_THAT(DevicesOf(plan), ElementsAre(0, 1, 2, all, 1));
  EXPECT_TRUE(Spread(rules, 5, 0, 3, &plan));
  EXPECT_THAT(DevicesOf(plan), ElementsAre(1, 2, 0, 1, 2));
}

TEST(PlacementTest, FewerDevicesLeaveTheSetsOfThese) {
  MoveRules rules = ThreeDevices();
  LimitDevices(2, &rules);
  EXPECT_THAT(rules.device_choices, ElementsAre(0, 1, DeviceSet{0, 1}));
  EXPECT_EQ(rules.turns, 2u);
}

TEST(PlacementTest, DevicesAreRenamedInTheOrderOfTheirUse) {
  plan::Plan plan = ThreeLayers();
  plan.backward_groups[0].devices = 2;
  plan.backward_groups[1].devices = {0, 2};
  plan.backward_groups[2].devices = 1;
  plan.forward_groups[0].devices = {2, 1};
  RenameDevices(&plan);
  EXPECT_THAT(DevicesOf(plan), ElementsAre(DeviceSet{0, 2}, 1, 2, DeviceSet{1, 0}, 0));
}

}  // namespace
}  // namespace harmony::planner
