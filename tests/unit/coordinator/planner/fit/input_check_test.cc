// What is refused before a plan is looked for.

#include "coordinator/planner/fit/input_check.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/job/job_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/coordinator/planner/gpt2_case.h"

namespace harmony::planner {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// As the reader of its file would: callers make jobs of their own, too.
TEST(InputCheckTest, RefusesAJobThatContradictsItselfAndAMachineWithoutDevices) {
  job::JobSpec job = Gpt2Job();
  job.update = job::UpdateMode::kEager;
  job.max_grad_norm = 1;
  ASSERT_FALSE(job::CheckJob(job).ok());
  EXPECT_EQ(PlanQuickly(Gpt2(), job, Machine("sim:mem=1GiB")).status(), job::CheckJob(job));
  const absl::Status none = PlanQuickly(Gpt2(), Gpt2Job(), {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(none)) << none;
  EXPECT_THAT(none.message(), HasSubstr("devices: "));
}

TEST(InputCheckTest, RefusesAStepThatTakesLongerThanClocksCount) {
  const job::JobSpec job = Gpt2Job();
  const auto plan = [&](const char* devices) {
    const absl::StatusOr<PlanResult> planned = PlanQuickly(Gpt2(), job, Machine(devices));
    return planned.ok() ? absl::StrCat(planned->estimate.step.seconds())
                        : std::string(planned.status().message());
  };
  EXPECT_THAT(plan("sim:mem=2GiB,flops=1M,h2d=1kB/s,d2h=1kB/s"), Not(HasSubstr("years")));
  job::JobSpec large = job;
  large.global_batch_size = 1 << 14;
  large.micro_batch_size = 1;
  large.sequence_length = 1024;
  const absl::Status status =
      PlanQuickly(Gpt2(1024), large, Machine("sim:mem=2GiB,flops=1M,h2d=1kB/s,d2h=1kB/s")).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("30 years"));
}

}  // namespace
}  // namespace harmony::planner
