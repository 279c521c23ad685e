#include "coordinator/service/run/metrics_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace harmony::service {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kAll = 1000;

class MetricsFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "metricsXXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ + "/metrics.jsonl";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& text) { std::ofstream(path_) << text; }
  std::string Read() {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  std::string folder_, path_;
};

TEST_F(MetricsFileTest, StartsEmptyAndAppends) {
  auto file = MetricsFile::Open(path_, 0);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->last_step(), 0);
  ASSERT_TRUE(file->Append(1, "{\"step\":1}").ok());
  ASSERT_TRUE(file->Append(2, "{\"step\":2}").ok());
  EXPECT_EQ(Read(), "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_EQ(file->last_step(), 2);
}

TEST_F(MetricsFileTest, IsForOneRunAtATime) {
  auto file = MetricsFile::Open(path_, 0);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Append(1, "{\"step\":1}").ok());
  EXPECT_EQ(MetricsFile::Open(path_, 0).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Read(), "{\"step\":1}\n");
  file = absl::CancelledError("over");
  EXPECT_TRUE(MetricsFile::Open(path_, kAll).ok());
}

TEST_F(MetricsFileTest, CutsATornLastLineAtEveryByte) {
  const std::string whole = "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":2.25}\n";
  const size_t first = whole.find('\n') + 1;
  for (size_t size = 0; size <= whole.size(); ++size) {
    Write(whole.substr(0, size));
    auto file = MetricsFile::Open(path_, kAll);
    ASSERT_TRUE(file.ok()) << file.status();
    const int64_t expected = size == whole.size() ? 2 : size >= first ? 1 : 0;
    EXPECT_EQ(file->last_step(), expected) << size;
    for (int64_t step = expected + 1; step <= 2; ++step) {
      const size_t begin = step == 1 ? 0 : first, end = step == 1 ? first : whole.size();
      ASSERT_TRUE(file->Append(step, whole.substr(begin, end - begin - 1)).ok());
    }
    EXPECT_EQ(Read(), whole) << size;
  }
}

TEST_F(MetricsFileTest, CutsStepsBeyondTheCheckpointAndSaysHowMany) {
  Write("{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"step\":4}\n{\"st");
  auto file = MetricsFile::Open(path_, 2);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->last_step(), 2);
  EXPECT_EQ(file->last_step_cut(), 4);
  EXPECT_EQ(Read(), "{\"step\":1}\n{\"step\":2}\n");
}

TEST_F(MetricsFileTest, ADamagedLineInTheMiddleIsNoReasonToThrowTheRestAway) {
  Write("{\"step\":1}\n{\"stop\":2}\n{\"step\":3}\n");
  EXPECT_EQ(MetricsFile::Open(path_, kAll)->last_step(), 3);
  EXPECT_THAT(Read(), HasSubstr("\"stop\":2"));
  EXPECT_EQ(MetricsFile::Open(path_, 1)->last_step(), 1);
  EXPECT_EQ(Read(), "{\"step\":1}\n");
  Write("{\"stop\":1}\n{\"step\":3}\n");
  EXPECT_EQ(MetricsFile::Open(path_, 2).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Read(), HasSubstr("\"step\":3"));
  EXPECT_TRUE(MetricsFile::Open(path_, 0).ok()) << "all of it goes";
}

// Only its end is read.
TEST_F(MetricsFileTest, AFileMayBeOfAnyLength) {
  const std::string line = "{\"step\":7,\"text\":\"" + std::string(300'000, 'x') + "\"}\n";
  Write("{\"step\":1}\n");
  std::filesystem::resize_file(path_, int64_t{5} << 30);
  std::ofstream(path_, std::ios::app) << "\n" << line << "{\"step\":8}\n{\"step\":9}\n{\"st";
  auto file = MetricsFile::Open(path_, 7);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->last_step(), 7);
  EXPECT_EQ(file->last_step_cut(), 9);
  EXPECT_EQ(std::filesystem::file_size(path_), (uint64_t{5} << 30) + 1 + line.size());
}

}  // namespace
}  // namespace harmony::service
