#include "common/runtime/profile_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "common/io/atomic_file.h"
#include "common/job/job_file.h"

namespace harmony::runtime {
namespace {

// Moves on by a second each time it is read.
class SteppingClock : public Clock {
 public:
  Nanos Now() const override { return now_ += Seconds(1); }

 private:
  mutable Nanos now_;
};

TEST(TimeRepeatsTest, RepeatsUntilItTookEnoughButAtLeastSoOften) {
  const SteppingClock clock;
  int runs = 0;
  const auto work = [&] { return ++runs, absl::OkStatus(); };
  EXPECT_EQ(TimeRepeats({3, 10, Seconds(5)}, work, clock)->size(), 5u);
  EXPECT_EQ(runs, 6);  // the first is not counted
  EXPECT_EQ(TimeRepeats({3, 10, Nanos(1)}, work, clock)->size(), 3u);
  EXPECT_EQ(TimeRepeats({3, 4, Seconds(100)}, work, clock)->size(), 4u);
}

TEST(TimeRepeatsTest, CountsNoneThatBeginsInTheWarmUp) {
  const SteppingClock clock;
  int runs = 0;
  const auto work = [&] { return ++runs, absl::OkStatus(); };
  EXPECT_EQ(TimeRepeats({3, 10, Seconds(5), Seconds(4)}, work, clock)->size(), 5u);
  EXPECT_EQ(runs, 9);
}

TEST(TimeRepeatsTest, AFailureEndsIt) {
  int runs = 0;
  const auto work = [&] { return ++runs < 3 ? absl::OkStatus() : absl::DataLossError("third"); };
  EXPECT_TRUE(absl::IsDataLoss(TimeRepeats({5, 10, Seconds(5)}, work).status()));
  EXPECT_EQ(runs, 3);
}

class AnswerProfileCallTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "callXXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    request_.part = profile::ProfileRequest::Part::kVersions;
    job::JobSpec job;
    job.model_name_or_path = "gpt2-mini";
    job.data_path = "data";
    job.output_dir = "out";
    request_.job_json = job::JobSpecToJson(job);
    request_.config_json = *model::PresetConfigJson("gpt2-mini");
    request_.output = folder_ + "/answer";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<profile::Profile> Answered(
      const std::function<absl::StatusOr<profile::Profile>(const ProfileCall&)>& measure) {
    const std::string path = folder_ + "/request";
    EXPECT_TRUE(io::WriteFileAtomically(path, profile::ProfileRequestToJson(request_)).ok());
    status_ = AnswerProfileCall(path, measure);
    const absl::StatusOr<std::string> answer = io::ReadWholeFile(request_.output, 1 << 20);
    if (!answer.ok()) return status_;
    return profile::ParseProfilePart(request_.part, *answer, "answer");
  }

  std::string folder_;
  profile::ProfileRequest request_;
  absl::Status status_;
};

TEST_F(AnswerProfileCallTest, TheAnswerIsWhatWasMeasured) {
  const absl::StatusOr<profile::Profile> answer = Answered([](const ProfileCall& call) {
    EXPECT_EQ(std::get<model::ModelConfig>(call.architecture).vocab_size, 256);
    EXPECT_EQ(call.job.sequence_length, job::JobSpec().sequence_length);
    profile::Profile profile;
    profile.versions = {"1", "2", "AVX2", "some", 4};
    return profile;
  });
  EXPECT_TRUE(status_.ok());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->versions.cores, 4);
}

TEST_F(AnswerProfileCallTest, AFailureIsAnAnswerToo) {
  const absl::StatusOr<profile::Profile> answer = Answered(
      [](const ProfileCall&) { return absl::ResourceExhaustedError("layer 3 does not fit"); });
  EXPECT_TRUE(absl::IsResourceExhausted(status_));
  EXPECT_EQ(answer.status(), status_);
}

}  // namespace
}  // namespace harmony::runtime
