// What is left of a step after a fault where layer groups lie on different sets of devices.

#include <vector>

#include "coordinator/recovery/frontier.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator/dispatch/small_case.h"

namespace harmony::dispatch {
namespace {

using ::testing::ElementsAre;

// With deferred updates few boundary gradients are committed. That of group 1's microbatch 0 is, in
// the place that group 3 had, which has to run again for microbatch 1: then it is there no more.
TEST(SetsRecoveryTest, WhatIsWrittenOverRunsAgain) {
  const model::ModelSpec model = SmallModel(2);
  plan::Plan plan = SmallPlan(model, 2);
  plan.replicas = plan.num_microbatches = 2;
  plan.update = job::UpdateMode::kDeferred;
  plan.boundary_banks = 2;
  for (auto* groups : {&plan.forward_groups, &plan.backward_groups}) {
    for (plan::LayerGroup& group : *groups) group.devices = 0;
  }
  ASSERT_EQ(plan.backward_groups.size(), 4);
  plan.backward_groups[1].devices = {0, 1};
  plan.backward_groups[1].gradient_parts = 2;
  plan.arena_dynamic = plan::ArenaLayout(model, plan).dynamic_bytes();
  ASSERT_EQ(plan::CheckPlan(model, plan), absl::OkStatus());
  const command::ObjectTableLayout table(model, 2, 2);
  std::vector<command::ObjectView> records(table.size());
  const auto set = [&](command::ObjectKind kind, int index, int part, uint64_t version) {
    const command::ObjectKey key{kind, index, part};
    records[table.IndexOf(key)] = {key, Bytes(0), Bytes(64), version, command::ObjectState::kClean};
  };
  for (int i = 0; i < table.size(); ++i) records[i].key = table.KeyOf(i);
  for (int block = 0; block < 4; ++block) {
    for (command::ObjectKind kind : {command::ObjectKind::kParameter, command::ObjectKind::kMoment1,
                                     command::ObjectKind::kMoment2}) {
      set(kind, block, 0, 0);
    }
  }
  set(command::ObjectKind::kBatch, 0, 0, 1);
  set(command::ObjectKind::kLoss, 0, 0, 1);
  for (int boundary : {1, 2, 3}) {
    for (int m : {0, 1}) set(command::ObjectKind::kStash, boundary, m, 1);
  }
  for (int group : {1, 2, 3}) {
    for (int part = 0; part < plan.backward_groups[group].gradient_parts; ++part) {
      for (int reference : plan::ReferencesOf(model, plan.backward_groups[group].layers)) {
        set(command::ObjectKind::kGradient, reference, part, 1);
      }
    }
  }
  set(command::ObjectKind::kBoundaryGradient, 1, 0, 1);
  const absl::StatusOr<recovery::Frontier> frontier =
      recovery::Frontier::FromRecords(table, records, 0);
  ASSERT_TRUE(frontier.ok()) << frontier.status();
  const auto left = [&] {
    return recovery::DeriveStepWork(model, plan, plan::ArenaLayout(model, plan), *frontier, 0)
        ->backward;
  };
  EXPECT_THAT(left(), ElementsAre(ElementsAre(true), ElementsAre(true, true), ElementsAre(true),
                                  ElementsAre(true)));
  plan.boundary_banks = 3;  // each has a place of its own
  EXPECT_THAT(left(), ElementsAre(ElementsAre(true), ElementsAre(false, true), ElementsAre(true),
                                  ElementsAre(true)));
}

}  // namespace
}  // namespace harmony::dispatch
