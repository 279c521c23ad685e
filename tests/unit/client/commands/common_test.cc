#include "client/commands/common.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace harmony::client {
namespace {

using ::testing::ElementsAre;

TEST(MakeSubmitRequest, CarriesTextPathAndOverrides) {
  std::string dir = std::filesystem::temp_directory_path() / "harmony-job.XXXXXX";
  ASSERT_NE(mkdtemp(dir.data()), nullptr);
  std::string path = dir + "/job.yaml";
  std::ofstream(path) << "max_steps: 5\n";
  absl::StatusOr<v1::SubmitRequest> request =
      MakeSubmitRequest({dir + "/./job.yaml", {"a=1", "data.path=x=y"}, true});
  std::filesystem::remove_all(dir);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->job_yaml(), "max_steps: 5\n");
  EXPECT_EQ(request->job_path(), path);
  EXPECT_THAT(request->overrides(), ElementsAre("a=1", "data.path=x=y"));
  EXPECT_TRUE(request->overwrite());
}

TEST(MakeSubmitRequest, NamesWhatIsWrong) {
  EXPECT_TRUE(absl::IsNotFound(MakeSubmitRequest({"/nowhere/job.yaml", {}, false}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(MakeSubmitRequest({"/", {}, false}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(MakeSubmitRequest({"/x", {"max_steps"}, false}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(MakeSubmitRequest({"/x", {"=5"}, false}).status()));
}

TEST(MakeSubmitRequest, ReadsTheProfileAndRefusesADamagedOne) {
  const std::string dir = ::testing::TempDir();
  std::ofstream(dir + "/job.yaml") << "max_steps: 1\n";
  std::ofstream(dir + "/P.json") << R"({"schema": "harmony-profile/0"})";
  const auto status = [&](const std::string& profile) {
    return MakeSubmitRequest({dir + "/job.yaml", {}, false, profile}).status();
  };
  EXPECT_TRUE(absl::IsNotFound(status(dir + "/none.json")));
  EXPECT_TRUE(absl::IsInvalidArgument(status(dir + "/P.json")));
  EXPECT_THAT(std::string(status(dir + "/P.json").message()),
              ::testing::HasSubstr("P.json: schema: 'harmony-profile/0' is not known"));
}

TEST(MakeSubmitRequest, ReadsOnlyRegularFiles) {
  std::string dir = std::filesystem::temp_directory_path() / "harmony-job.XXXXXX";
  ASSERT_NE(mkdtemp(dir.data()), nullptr);
  const std::string fifo = dir + "/fifo", job = dir + "/job.yaml", huge = dir + "/huge";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  std::ofstream(job) << "max_steps: 1\n";
  std::ofstream(huge).close();
  std::filesystem::resize_file(huge, uint64_t{1} << 40);
  const auto message = [](const JobOptions& options) {
    return std::string(MakeSubmitRequest(options).status().message());
  };
  for (const std::string& path : {fifo, std::string("/dev/zero")}) {
    EXPECT_EQ(message({path, {}, false}), "job file: " + path + ": is not a regular file");
    EXPECT_EQ(message({job, {}, false, path}), "profile: " + path + ": is not a regular file");
    EXPECT_EQ(message({job, {}, false, "", path}), "plan: " + path + ": is not a regular file");
  }
  EXPECT_THAT(message({huge, {}, false}), ::testing::HasSubstr("more than the 64.00 MiB"));
  std::filesystem::remove_all(dir);
}

TEST(ExitCodeOfJob, BadInputIsTwoOnlyBeforeTheFirstStep) {
  v1::Job job;
  job.set_state(v1::JOB_STATE_FINISHED);
  EXPECT_EQ(ExitCodeOfJob(job), 0);
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_error_code(static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(ExitCodeOfJob(job), 2);
  job.set_error_code(static_cast<int>(absl::StatusCode::kInternal));
  EXPECT_EQ(ExitCodeOfJob(job), 1);
  job.set_error_code(static_cast<int>(absl::StatusCode::kOutOfRange));
  job.set_completed_steps(3);
  EXPECT_EQ(ExitCodeOfJob(job), 1);
  job.set_error_code(0);  // a failure that nobody gave a code
  job.set_completed_steps(0);
  EXPECT_EQ(ExitCodeOfJob(job), 1);
}

}  // namespace
}  // namespace harmony::client
