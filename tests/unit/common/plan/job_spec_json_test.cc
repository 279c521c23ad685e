#include "common/plan/job_spec_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace harmony {
namespace {

TEST(JobSpecJsonTest, RoundTripsEveryMember) {
  JobSpec job;
  job.model_name_or_path = "/models/\"x\"";
  job.init = InitMode::kPretrained;
  job.data_path = "data.bin";
  job.data_format = DataFormat::kTokensU16;
  job.sequence_length = 77;
  job.learning_rate = 0.1;
  job.min_lr_rate = 1.0 / 3.0;
  job.shuffle = true;
  job.layer_groups = {3, 4, 5};
  job.lr_scheduler_type = ScheduleKind::kCosineWithMinLr;
  job.update = UpdateMode::kDeferred;
  job.stash = StashPlacement::kDevice;
  job.optim = OptimizerKind::kSgd;
  job.seed = UINT64_MAX;
  job.max_grad_norm = 0.30000000000000004;
  job.output_dir = "out";
  const std::string json = JobSpecToJson(job);
  const auto again = JobSpecFromJson(json);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(JobSpecToJson(*again), json);
  EXPECT_EQ(again->learning_rate, job.learning_rate);
  EXPECT_EQ(again->min_lr_rate, job.min_lr_rate);
  EXPECT_EQ(again->seed, job.seed);
  EXPECT_EQ(again->layer_groups, job.layer_groups);
  EXPECT_EQ(again->model_name_or_path, job.model_name_or_path);
}

TEST(JobSpecJsonTest, NamesWhatIsWrong) {
  EXPECT_FALSE(JobSpecFromJson("[]").ok());
  EXPECT_FALSE(JobSpecFromJson("{").ok());
  EXPECT_THAT(std::string(JobSpecFromJson("{}").status().message()),
              testing::HasSubstr("model_name_or_path"));
  std::string json = JobSpecToJson(JobSpec());
  json.replace(json.find("\"optim\":0"), 9, "\"optim\":9");
  EXPECT_THAT(std::string(JobSpecFromJson(json).status().message()),
              testing::HasSubstr("'optim' is 9"));
}

}  // namespace
}  // namespace harmony
