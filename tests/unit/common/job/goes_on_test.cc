#include "common/job/goes_on.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/job/job_file.h"

namespace harmony::job {
namespace {

using ::testing::HasSubstr;

JobSpec Job(int64_t max_steps, ScheduleKind schedule = ScheduleKind::kConstant) {
  JobSpec job;
  job.model_name_or_path = "gpt2-mini";
  job.data_path = "/data.txt";
  job.output_dir = "/out";
  job.max_steps = max_steps;
  job.lr_scheduler_type = schedule;
  return job;
}

absl::Status Check(const JobSpec& before, const JobSpec& after, int64_t steps) {
  return CheckGoesOn(ResultKeysText(before), after, ResultKeysText(after), steps);
}

void ExpectRefused(const absl::Status& status, const std::vector<std::string>& words) {
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  for (const std::string& word : words) EXPECT_THAT(std::string(status.message()), HasSubstr(word));
}

TEST(GoesOnTest, MoreStepsAtAConstantRate) {
  EXPECT_TRUE(Check(Job(10), Job(10), 10).ok());
  EXPECT_TRUE(Check(Job(10), Job(20), 10).ok());
  EXPECT_TRUE(Check(Job(20), Job(10), 10).ok());
  ExpectRefused(Check(Job(20), Job(10), 11), {"max_steps (20 -> 10)", "11 steps are done"});
  JobSpec before = Job(10, ScheduleKind::kConstantWithWarmup), after = before;
  before.warmup_steps = after.warmup_steps = 4;
  after.max_steps = 20;
  EXPECT_TRUE(Check(before, after, 10).ok());
  before.warmup_steps = after.warmup_steps = 0.5;
  ExpectRefused(Check(before, after, 10), {"step 2 had the learning rate"});
}

TEST(GoesOnTest, AScheduleThatFollowsMaxStepsWouldHaveHadOtherRates) {
  const JobSpec before = Job(10, ScheduleKind::kCosine), after = Job(20, ScheduleKind::kCosine);
  EXPECT_TRUE(Check(before, after, 0).ok());
  EXPECT_TRUE(Check(before, after, 1).ok()) << "which begin with the same one";
  ExpectRefused(Check(before, after, 10),
                {"max_steps (10 -> 20)", "step 2 had the learning rate", "another output_dir"});
}

TEST(GoesOnTest, AnotherRateFromANamedStepOn) {
  JobSpec after = Job(20);
  after.learning_rate_after = {{10, 1e-5}};
  EXPECT_EQ(LearningRateAt(after, 9), 3e-4);
  EXPECT_EQ(LearningRateAt(after, 10), 1e-5);
  EXPECT_TRUE(Check(Job(10), after, 10).ok());
  JobSpec twice = after;
  twice.max_steps = 30;
  twice.learning_rate_after[20] = 1e-6;
  EXPECT_EQ(LearningRateAt(twice, 25), 1e-6);
  EXPECT_TRUE(Check(after, twice, 20).ok());
  EXPECT_TRUE(Check(Job(10), twice, 10).ok()) << "an older checkpoint has to do as well";
  ExpectRefused(Check(Job(20), after, 12),
                {"step 11 had the learning rate 0.0003", "after step 12"});
  after.learning_rate_after.clear();
  after.learning_rate = 1e-5;
  ExpectRefused(
      Check(Job(10), after, 10),
      {"learning_rate (", "leave learning_rate and give learning_rate_after: {10: RATE}"});
}

TEST(GoesOnTest, AllOtherKeysStandAgainstIt) {
  JobSpec after = Job(20);
  after.seed = 3;
  ExpectRefused(Check(Job(10), after, 10), {"max_steps (10 -> 20), seed (0 -> 3)"});
  ExpectRefused(CheckGoesOn("max_steps: soon\n", Job(20), "max_steps: 20\n", 10), {"damaged"});
}

}  // namespace
}  // namespace harmony::job
