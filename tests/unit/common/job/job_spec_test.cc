#include "common/job/job_spec.h"

#include <gtest/gtest.h>

namespace harmony::job {
namespace {

JobSpec Job(ScheduleKind kind, int64_t max_steps, double warmup) {
  JobSpec job;
  job.lr_scheduler_type = kind;
  job.max_steps = max_steps;
  job.warmup_steps = warmup;
  job.learning_rate = 2.0;
  return job;
}

TEST(LearningRateTest, ConstantIgnoresWarmup) {
  const JobSpec job = Job(ScheduleKind::kConstant, 10, 4);
  EXPECT_EQ(LearningRateAt(job, 0), 2.0);
  EXPECT_EQ(LearningRateAt(job, 9), 2.0);
}

TEST(LearningRateTest, WarmupRisesFromZero) {
  const JobSpec job = Job(ScheduleKind::kConstantWithWarmup, 10, 4);
  EXPECT_EQ(LearningRateAt(job, 0), 0.0);
  EXPECT_EQ(LearningRateAt(job, 1), 0.5);
  EXPECT_EQ(LearningRateAt(job, 4), 2.0);
  EXPECT_EQ(LearningRateAt(job, 9), 2.0);
}

TEST(LearningRateTest, LinearFallsToZero) {
  const JobSpec job = Job(ScheduleKind::kLinear, 12, 4);
  EXPECT_EQ(LearningRateAt(job, 2), 1.0);
  EXPECT_EQ(LearningRateAt(job, 4), 2.0);
  EXPECT_EQ(LearningRateAt(job, 8), 1.0);
  EXPECT_EQ(LearningRateAt(job, 12), 0.0);
}

TEST(LearningRateTest, CosineAndItsMinimum) {
  const JobSpec cosine = Job(ScheduleKind::kCosine, 12, 4);
  EXPECT_EQ(LearningRateAt(cosine, 4), 2.0);
  EXPECT_NEAR(LearningRateAt(cosine, 8), 1.0, 1e-12);
  EXPECT_NEAR(LearningRateAt(cosine, 12), 0.0, 1e-12);
  JobSpec min = Job(ScheduleKind::kCosineWithMinLr, 12, 4);
  min.min_lr_rate = 0.1;
  EXPECT_NEAR(LearningRateAt(min, 8), 2 * 0.55, 1e-12);
  EXPECT_NEAR(LearningRateAt(min, 12), 0.2, 1e-12);
}

TEST(LearningRateTest, SharesOfWarmupAreRoundedUp) {
  EXPECT_EQ(Job(ScheduleKind::kLinear, 25, 0.1).ResolvedWarmupSteps(), 3);
  EXPECT_EQ(Job(ScheduleKind::kLinear, 25, 0).ResolvedWarmupSteps(), 0);
  EXPECT_EQ(Job(ScheduleKind::kLinear, 25, 7).ResolvedWarmupSteps(), 7);
}

TEST(JobSpecTest, ClippingDefersUpdates) {
  JobSpec job;
  EXPECT_FALSE(job.DeferredUpdates());
  job.max_grad_norm = 1;
  EXPECT_TRUE(job.DeferredUpdates());
}

}  // namespace
}  // namespace harmony::job
