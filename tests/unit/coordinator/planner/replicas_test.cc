// How many replicas a step's gradients are added up in, where the job leaves it open.

#include "absl/strings/match.h"
#include "common/plan/arena_layout.h"
#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator/planner/gpt2_case.h"

namespace harmony::planner {
namespace {

using ::testing::HasSubstr;

// The result of a job that asks for nothing does not depend on the number of devices, nor on their
// memory, nor on the mode that is best for them. In half a GiB a gradient of the head has no room
// for the buffers of 16 replicas, and leaves in parts.
TEST(ReplicasTest, AreTheSameOnAnyDevices) {
  const model::ModelSpec model = Gpt2();
  PlannerOptions options;
  options.explain = true;
  for (const char* devices : {"sim:mem=2GiB", "sim:mem=512MiB", kFourPaced}) {
    const plan::MachineSpec machine = Machine(devices);
    const absl::StatusOr<PlanResult> planned = PlanQuickly(model, Gpt2Job(), machine, options);
    ASSERT_TRUE(planned.ok()) << planned.status();
    EXPECT_EQ(planned->plan.replicas, 16);
    if (machine.devices.front().memory < GiB(1)) {
      EXPECT_GT(planned->plan.backward_groups.back().gradient_parts, 1);
    }
    ASSERT_FALSE(planned->alternatives.empty());
    const bool named = absl::StartsWith(planned->alternatives.front().what, "mode: ");
    EXPECT_EQ(named, planned->plan.devices.size() > 1) << planned->alternatives.front().what;
  }
}

// Four replicas' gradients leave devices of half a GiB in four parts, which the host holds.
TEST(ReplicasTest, AreAsManyAsTheHostHasRoomFor) {
  const model::ModelSpec model = Gpt2();
  job::JobSpec job = Gpt2Job();
  plan::MachineSpec machine = Machine("sim*4:mem=512MiB");
  const auto arena_of = [&](int replicas) {
    job.virtual_replicas = replicas;
    const absl::StatusOr<PlanResult> planned = PlanQuickly(model, job, machine);
    EXPECT_TRUE(planned.ok()) << planned.status();
    return plan::ArenaLayout(model, planned->plan).end();
  };
  const Bytes four = arena_of(4);
  ASSERT_LT(arena_of(1), four);
  ASSERT_LT(four, arena_of(16));
  job.virtual_replicas = 0;
  machine.host_memory = four;
  const absl::StatusOr<PlanResult> fewer = PlanQuickly(model, job, machine);
  ASSERT_TRUE(fewer.ok()) << fewer.status();
  EXPECT_TRUE(fewer->fewer_replicas_for_host);
  EXPECT_GE(fewer->plan.replicas, 4);
  EXPECT_LT(fewer->plan.replicas, 16);
  machine.host_memory = GiB(1);
  EXPECT_THAT(PlanQuickly(model, job, machine).status().message(),
              HasSubstr("the host arena needs"));
}

TEST(ReplicasTest, AreThoseTheRunBeganWith) {
  const model::ModelSpec model = Gpt2();
  job::JobSpec job = Gpt2Job();
  PlannerOptions options;
  options.replicas = 2;
  options.microbatch_size = 2;
  for (const char* mode : {"auto", "harmony-pp", "harmony-dp"}) {
    job.mode = mode;
    const absl::StatusOr<PlanResult> planned =
        PlanQuickly(model, job, Machine("sim*2:mem=2GiB"), options);
    ASSERT_TRUE(planned.ok()) << mode << ": " << planned.status();
    EXPECT_EQ(planned->plan.replicas, 2) << mode;
  }
}

}  // namespace
}  // namespace harmony::planner
