#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/common/job/job_texts.h"

namespace harmony::job {
namespace {

using ::testing::ElementsAre;

TEST(JobTextTest, DigestCoversWhatDeterminesTheResult) {
  const JobSpec job = *Parse("");
  JobSpec other = job;
  other.output_dir = "/elsewhere";
  other.layer_groups = {7, 7};
  other.logging_steps = 9;
  EXPECT_EQ(ResultDigest(ResultKeysText(job)), ResultDigest(ResultKeysText(other)));
  other.learning_rate = 1e-3;
  other.data_path = "/jobs/other.txt";
  EXPECT_NE(ResultDigest(ResultKeysText(job)), ResultDigest(ResultKeysText(other)));
  EXPECT_EQ(ResultDigest(ResultKeysText(job)).size(), 32u);
  EXPECT_THAT(DifferingKeys(ResultKeysText(job), ResultKeysText(other)),
              ElementsAre("data.path (/jobs/text.txt -> /jobs/other.txt)",
                          "learning_rate (3e-04 -> 0.001)"));
  EXPECT_THAT(DifferingKeys("a: 1\n", "b: 2\n"), ElementsAre("a (1 -> absent)", "b (absent -> 2)"));
}

TEST(JobTextTest, AKeyThatAnEarlierVersionDidNotKnowHadItsDefault) {
  JobSpec job = *Parse("");
  const std::string now = ResultKeysText(job), line = "virtual_replicas: auto\n";
  const size_t at = now.find(line);
  ASSERT_NE(at, std::string::npos) << now;
  std::string before = now;
  before.erase(at, line.size());
  EXPECT_THAT(DifferingKeys(before, now), ElementsAre());
  job.virtual_replicas = 4;
  EXPECT_THAT(DifferingKeys(before, ResultKeysText(job)),
              ElementsAre("virtual_replicas (auto -> 4)"));
  std::string json = JobSpecToJson(*Parse("seed: 3"));
  const std::string field = "\"virtual_replicas\":\"auto\",";
  ASSERT_NE(json.find(field), std::string::npos) << json;
  json.erase(json.find(field), field.size());
  const absl::StatusOr<JobSpec> stored = JobSpecFromJson(json, "database");
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(ResultKeysText(*stored), ResultKeysText(*Parse("seed: 3")));
  EXPECT_EQ(BegunFrom(ResultKeysText(*stored)), "");
  JobSpec begun = *stored;
  begun.begun_from = "step 7, checksum 00ff";
  const auto kept = JobSpecFromJson(JobSpecToJson(begun), "database");
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(BegunFrom(ResultKeysText(*kept)), "step 7, checksum 00ff");
  EXPECT_THAT(DifferingKeys(ResultKeysText(*stored), ResultKeysText(*kept)),
              ElementsAre("resume_from_checkpoint (absent -> step 7, checksum 00ff)"));
}

TEST(JobTextTest, AnotherModelIsAnotherRunWhereBothAreKnown) {
  JobSpec job = *Parse("");
  const std::string unknown = ResultKeysText(job);
  job.model_content = "00ff";
  const std::string before = ResultKeysText(job);
  EXPECT_THAT(DifferingKeys(unknown, before), ElementsAre());
  const auto kept = JobSpecFromJson(JobSpecToJson(job), "database");
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->model_content, "00ff");
  job.model_content = "00fe";
  EXPECT_THAT(DifferingKeys(before, ResultKeysText(job)), ElementsAre("model (00ff -> 00fe)"));
}

TEST(JobTextTest, StoredJsonIsChecked) {
  for (const char* text : {"", "[]", "{}", R"({"seed": 1})"}) {
    EXPECT_FALSE(JobSpecFromJson(text, "database").ok()) << text;
  }
  std::string json = JobSpecToJson(*Parse(""));
  json.back() = ',';
  ExpectError(JobSpecFromJson(json + R"("sed": 1})", "database").status(),
              absl::StatusCode::kInvalidArgument, {"database", "'sed'"});
}

}  // namespace
}  // namespace harmony::job
