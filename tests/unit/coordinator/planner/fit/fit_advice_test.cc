// What fits, and what is said where it does not: each piece of advice is followed.

#include "coordinator/planner/fit/fit_advice.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/model/model_sizes.h"
#include "common/plan/arena_layout.h"
#include "coordinator/planner/search/moves.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator/planner/gpt2_case.h"

namespace harmony::planner {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string NumberAfter(const std::string& text, absl::string_view before) {
  const size_t at = text.find(before.data(), 0, before.size());
  if (at == std::string::npos) return "";
  const size_t begin = at + before.size();
  return text.substr(begin, text.find_first_not_of("0123456789", begin) - begin);
}

TEST(FitTest, SaysWhatIsMissingAndWhatWouldFit) {
  const model::ModelSpec model = Gpt2();
  for (const char* context : {"", ",context=100MiB"}) {
    const absl::StatusOr<PlanResult> planned =
        PlanQuickly(model, Gpt2Job(), Machine(absl::StrCat("sim*2:mem=256MiB", context)));
    ASSERT_EQ(planned.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(planned.status().message(), HasSubstr("layers 13 to 13"));
    EXPECT_THAT(planned.status().message(), HasSubstr("missing"));
    const std::string message(planned.status().message());
    const std::string memory = NumberAfter(message, "mem=");
    const plan::MachineSpec machine = Machine(absl::StrCat("sim*2:mem=", memory, context));
    EXPECT_TRUE(PlanQuickly(model, Gpt2Job(), machine).ok()) << message;
  }
}

TEST(FitTest, SmallerMicrobatchesAndShorterSequencesFitAsIsSaid) {
  const model::ModelSpec model = Gpt2(512);
  const plan::MachineSpec machine = Machine("sim*2:mem=512MiB");
  job::JobSpec job = Gpt2Job();
  job.micro_batch_size = 32;
  job.sequence_length = 512;
  const std::string message(PlanQuickly(model, job, machine).status().message());
  job::JobSpec smaller = job, shorter = job;
  ASSERT_TRUE(
      absl::SimpleAtoi(NumberAfter(message, "micro_batch_size: "), &smaller.micro_batch_size))
      << message;
  EXPECT_TRUE(PlanQuickly(model, smaller, machine).ok()) << message;
  ASSERT_TRUE(absl::SimpleAtoi(NumberAfter(message, "sequence_length: "), &shorter.sequence_length))
      << message;
  EXPECT_TRUE(PlanQuickly(Gpt2(shorter.sequence_length), shorter, machine).ok()) << message;
  shorter.sequence_length *= 2;
  EXPECT_FALSE(PlanQuickly(Gpt2(shorter.sequence_length), shorter, machine).ok()) << message;
}

// A job file would refuse it: half the size makes twice the microbatches.
TEST(FitTest, SmallerMicrobatchesAreNotAdvisedWhereAJobMayHaveNoMore) {
  job::JobSpec job = Gpt2Job();
  job.micro_batch_size = 32;
  job.global_batch_size = 32 * limits::kMostMicrobatches;
  job.sequence_length = 512;
  const absl::Status status =
      DeviceTooSmall(Gpt2(512), job, Machine("sim*2:mem=512MiB"), 32, {}, {}, Gpt2);
  ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.message(), HasSubstr("sequence_length: "));
  EXPECT_THAT(status.message(), Not(HasSubstr("micro_batch_size: ")));
}

// Memory counts what forward tasks of several microbatches take.
TEST(FitTest, ForwardTasksOfSeveralMicrobatchesHaveRoomForThem) {
  const model::ModelSpec model = Gpt2();
  job::JobSpec job = Gpt2Job();
  job.micro_batch_size = 0;
  const plan::MachineSpec machine = Machine("sim*2:mem=700MiB");
  const PlanBuilder builder(model, job, machine, 2, {});
  plan::Plan plan = builder.Blank();
  for (int layer = 0; layer < model.num_layers(); ++layer) {
    plan.backward_groups.push_back({{layer, layer}, layer % 2});
  }
  MirrorForward(&plan);
  plan.stream_slots = 1;
  int fitting = 0;
  for (int task_microbatches : builder.ForwardTaskSizes()) {
    plan.microbatches_per_forward_task = task_microbatches;
    StepExecutions step;
    if (!builder.Complete(&plan, &step)) continue;
    ++fitting;
    const Bytes workspace = model::WorkspaceBound(model, model::WorkspaceOf::kForward, {2, 2},
                                                  2 * int64_t{task_microbatches});
    EXPECT_LE(plan.devices[0].resident + workspace, plan.devices[0].memory) << task_microbatches;
  }
  EXPECT_GT(fitting, 1);
}

TEST(FitTest, WhatAContextTakesIsNotPlannedWith) {
  const model::ModelSpec model = Gpt2();
  job::JobSpec job = Gpt2Job();
  job.layer_groups.assign(14, 1);  // little is left to search
  const auto plan_on = [&](absl::string_view devices) {
    const absl::StatusOr<PlanResult> planned = PlanQuickly(model, job, Machine(devices));
    return planned.ok() ? DebugString(planned->plan) : planned.status().ToString();
  };
  EXPECT_EQ(plan_on("sim*2:mem=600MiB,context=88MiB"), plan_on("sim*2:mem=512MiB"));
  EXPECT_NE(plan_on("sim*2:mem=600MiB"), plan_on("sim*2:mem=512MiB"));
}

TEST(FitTest, RefusesAHostThatIsTooSmall) {
  plan::MachineSpec machine = Machine("sim:mem=2GiB");
  machine.host_memory = GiB(1);
  machine.segment_for = [](Bytes arena) { return arena + MiB(10); };
  const absl::StatusOr<PlanResult> planned = PlanQuickly(Gpt2(), Gpt2Job(), machine);
  ASSERT_EQ(planned.status().code(), absl::StatusCode::kResourceExhausted);
  const std::string message(planned.status().message());
  EXPECT_THAT(message, HasSubstr("too little"));
  ASSERT_TRUE(ParseBytes(NumberAfter(message, "--host-memory ")).ok()) << message;
  machine.host_memory = *ParseBytes(NumberAfter(message, "--host-memory "));
  EXPECT_TRUE(PlanQuickly(Gpt2(), Gpt2Job(), machine).ok()) << message;
}

// Gradients that leave in parts take more of the host: with too little of it there is one replica.
TEST(FitTest, AHostThatHasNoRoomForReplicasHasOne) {
  const model::ModelSpec model = Gpt2();
  job::JobSpec one = Gpt2Job();
  one.virtual_replicas = 1;
  plan::MachineSpec machine = Machine("sim:mem=700MiB");
  const absl::StatusOr<PlanResult> roomy = PlanQuickly(model, Gpt2Job(), machine);
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  EXPECT_GT(roomy->plan.replicas, 1);
  machine.host_memory = GiB(1);
  const std::string message(PlanQuickly(model, one, machine).status().message());
  machine.host_memory = *ParseBytes(NumberAfter(message, "--host-memory "));
  const absl::StatusOr<PlanResult> tight = PlanQuickly(model, Gpt2Job(), machine);
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_EQ(tight->plan.replicas, 1);
}

// The fastest plan takes more of the host than another one.
TEST(FitTest, AHostIsTooSmallOnlyForThePlanThatNeedsLeastOfIt) {
  const model::ModelSpec model = Gpt2();
  job::JobSpec job = Gpt2Job();
  job.global_batch_size = 256;
  plan::MachineSpec machine = Machine("sim*2:mem=700MiB,flops=1T,h2d=10GB/s,d2h=10GB/s,p2p=10GB/s");
  const absl::StatusOr<PlanResult> fastest = PlanQuickly(model, job, machine);
  ASSERT_TRUE(fastest.ok()) << fastest.status();
  machine.host_memory = GiB(1);
  const std::string message(PlanQuickly(model, job, machine).status().message());
  machine.host_memory = *ParseBytes(NumberAfter(message, "--host-memory "));
  EXPECT_LT(machine.host_memory, plan::ArenaLayout(model, fastest->plan).end());
  const absl::StatusOr<PlanResult> least = PlanQuickly(model, job, machine);
  ASSERT_TRUE(least.ok()) << message << "\n" << least.status();
  job::JobSpec smaller = job, shorter = job;
  machine.host_memory = GiB(2);
  const std::string advice(PlanQuickly(model, job, machine).status().message());
  ASSERT_TRUE(
      absl::SimpleAtoi(NumberAfter(advice, "global_batch_size: "), &smaller.global_batch_size))
      << advice;
  EXPECT_TRUE(PlanQuickly(model, smaller, machine).ok()) << advice;
  ASSERT_TRUE(absl::SimpleAtoi(NumberAfter(advice, "sequence_length: "), &shorter.sequence_length))
      << advice;
  EXPECT_TRUE(PlanQuickly(Gpt2(shorter.sequence_length), shorter, machine).ok()) << advice;
}

}  // namespace
}  // namespace harmony::planner
