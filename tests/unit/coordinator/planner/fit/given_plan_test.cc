#include "coordinator/planner/fit/given_plan.h"

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "common/plan/plan_json.h"
#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/quick_search.h"
#include "tests/unit/coordinator/dispatch/small_case.h"

namespace harmony::planner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class GivenPlanTest : public ::testing::Test {
 protected:
  GivenPlanTest() {
    job_.sequence_length = 16;
    job_.global_batch_size = 4;
    job_.micro_batch_size = 1;
    machine_.devices =
        *plan::ParseDevices("sim*2:mem=8MiB,flops=100M,h2d=10MB/s,d2h=10MB/s,p2p=10MB/s");
    quick_.search = testing_support::kQuickSearch;
    result_ = *MakePlan(model_, job_, machine_, quick_);
    given_ = result_.plan;
  }
  absl::Status Adopt() {
    return AdoptPlan(model_, job_, machine_, given_, "p.json", {}, {}).status();
  }
  void Expect(absl::string_view what, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    const absl::Status status = Adopt();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith("p.json"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(what)));
  }

  model::ModelSpec model_ = dispatch::SmallModel(4);
  PlannerOptions quick_;  // any plan will do
  job::JobSpec job_;
  plan::MachineSpec machine_;
  PlanResult result_;
  plan::Plan given_;
};

TEST_F(GivenPlanTest, WhatThePlannerPrintsIsThePlanAgain) {
  const std::string json = PlanToJson(model_, result_, machine_);
  const absl::StatusOr<plan::Plan> given = plan::ParsePlanFile(json, "p.json");
  ASSERT_TRUE(given.ok()) << given.status();
  PlannerOptions options = quick_;
  options.given = &*given;
  options.given_path = "p.json";
  const absl::StatusOr<PlanResult> again = MakePlan(model_, job_, machine_, options);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(DebugString(again->plan), DebugString(result_.plan));
  EXPECT_EQ(again->estimate.step, result_.estimate.step);
  EXPECT_FALSE(again->searched);
}

TEST_F(GivenPlanTest, RefusesWhatIsNotForThisJobOrMachine) {
  ASSERT_TRUE(Adopt().ok()) << Adopt();
  job_.sequence_length = 8;
  Expect("sequence_length: 16");
  job_.sequence_length = 16;
  job_.global_batch_size = 8;
  Expect("global_batch_size: 8");
  job_.global_batch_size = 4;
  job_.micro_batch_size = 2;
  Expect("micro_batch_size: 1");
  job_.micro_batch_size = 0;
  job_.max_grad_norm = 1;
  given_.update = job::UpdateMode::kEager;
  Expect("max_grad_norm");
  job_.max_grad_norm = 0;
  given_.backward_groups.back().devices = 5;
  Expect("on device 5 of 2");
  given_ = result_.plan;
  machine_.devices = *plan::ParseDevices("sim*2:mem=4202496");  // the workspace and no more
  Expect("groups[", absl::StatusCode::kResourceExhausted);
  model_ = dispatch::SmallModel(6);
  machine_.devices = *plan::ParseDevices("sim*2:mem=8MiB");
  Expect("the model has layers 0 to 7");
}

TEST_F(GivenPlanTest, ExplainsItself) {
  PlannerOptions options = quick_;
  options.explain = true;
  const absl::StatusOr<PlanResult> result = MakePlan(model_, job_, machine_, options);
  ASSERT_TRUE(result.ok()) << result.status();
  const std::string text = ExplainPlan(model_, *result, machine_);
  for (const char* part : {"tokens/s", "One step", "Alternatives", "at least",
                           "device 0: computing", "host: updates on the host", "speeds given"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  // A row of the picture for each lane that works, all of the same width.
  EXPECT_THAT(text, HasSubstr("|"));
  EXPECT_GE(result->alternatives.size(), 4u);
  for (const Alternative& other : result->alternatives) {
    if (!other.fits) continue;
    EXPECT_GT(other.step, Nanos(0)) << other.what;
    EXPECT_FALSE(other.why.empty());
  }
  machine_.devices = *plan::ParseDevices("sim*2:mem=8MiB");
  const absl::StatusOr<PlanResult> blind = MakePlan(model_, job_, machine_, options);
  ASSERT_TRUE(blind.ok());
  EXPECT_THAT(ExplainPlan(model_, *blind, machine_), HasSubstr("guesses"));
}

TEST_F(GivenPlanTest, SaysInWhichPrecisionLayersCompute) {
  EXPECT_THAT(ExplainPlan(model_, result_, machine_),
              AllOf(HasSubstr(" in fp32 on 2 devices: "), Not(HasSubstr("masters"))));
  EXPECT_THAT(PlanToJson(model_, result_, machine_),
              AllOf(HasSubstr("\"precision\":\"fp32\""), HasSubstr("\"masters\":0")));
  const model::ModelSpec narrow = dispatch::SmallModel(4, false, DType::kBF16);
  const absl::StatusOr<PlanResult> result = MakePlan(narrow, job_, machine_, quick_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(ExplainPlan(narrow, *result, machine_),
              AllOf(HasSubstr(" in bf16, fp32 gradients, on 2 devices: "),
                    HasSubstr("\n  fp32 masters "), HasSubstr("\n  weights, masters, moments ")));
  EXPECT_THAT(PlanToJson(narrow, *result, machine_), HasSubstr("\"precision\":\"bf16\""));
}

// The microbatch size is part of what fixes the result: it does not depend on how many devices
// there are.
TEST_F(GivenPlanTest, AutoMicrobatchDoesNotDependOnTheDeviceCount) {
  job_.micro_batch_size = 0;
  job_.global_batch_size = 16;
  std::vector<int64_t> sizes;
  for (const char* count : {"1", "2", "3", "4", "5"}) {
    machine_.devices = *plan::ParseDevices(
        absl::StrCat("sim*", count, ":mem=8MiB,flops=100M,h2d=10MB/s,d2h=10MB/s,p2p=10MB/s"));
    const absl::StatusOr<PlanResult> result = MakePlan(model_, job_, machine_, quick_);
    ASSERT_TRUE(result.ok()) << result.status();
    sizes.push_back(result->plan.microbatch_size);
  }
  EXPECT_THAT(sizes, ::testing::Each(sizes.front()));
}

// Where tasks are short, forwards of several microbatches save their fixed costs; a run that was
// begun with a microbatch size keeps it.
TEST_F(GivenPlanTest, ForwardTasksMayBeLarger) {
  job_.mode = "harmony-pp";
  job_.micro_batch_size = 0;
  job_.global_batch_size = 8;
  machine_.devices =
      *plan::ParseDevices("sim*2:mem=8MiB,flops=100G,h2d=10GB/s,d2h=10GB/s,p2p=10GB/s");
  PlannerOptions options = quick_;
  options.explain = true;
  options.microbatch_size = 1;
  const absl::StatusOr<PlanResult> result = MakePlan(model_, job_, machine_, options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->plan.microbatch_size, 1);
  ASSERT_GT(result->plan.microbatches_per_forward_task, 1);
  EXPECT_GE(result->estimate.step, result->report.lower_bound);
  EXPECT_THAT(ExplainPlan(model_, *result, machine_), HasSubstr(" at once in forward"));
  // No other size is said to be better.
  EXPECT_FALSE(absl::c_any_of(result->alternatives, [](const Alternative& other) {
    return absl::StartsWith(other.what, "forward tasks of ") &&
           absl::StartsWith(other.why, "faster");
  }));

  const std::string json = PlanToJson(model_, *result, machine_);
  const absl::StatusOr<plan::Plan> given = plan::ParsePlanFile(json, "p.json");
  ASSERT_TRUE(given.ok()) << given.status();
  options.given = &*given;
  options.given_path = "p.json";
  const absl::StatusOr<PlanResult> again = MakePlan(model_, job_, machine_, options);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(DebugString(again->plan), DebugString(result->plan));
  EXPECT_EQ(again->report.lower_bound, result->report.lower_bound);
  options.microbatch_size = 2;
  EXPECT_THAT(
      std::string(MakePlan(model_, job_, machine_, options).status().message()),
      HasSubstr("p.json: micro_batch_size: 1, but the run was begun with micro_batch_size: 2"));

  // A number is the size of both.
  job_.micro_batch_size = 1;
  given_ = *given;
  Expect("forward_span: ");
  EXPECT_EQ(MakePlan(model_, job_, machine_, quick_)->plan.microbatches_per_forward_task, 1);
}

}  // namespace
}  // namespace harmony::planner
