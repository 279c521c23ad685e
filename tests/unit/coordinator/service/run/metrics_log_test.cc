#include "coordinator/service/run/metrics_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/unit/common/io/temp_dir.h"

namespace harmony::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// No file of this process may be larger, as if the disk were full.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit less = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &less);
  }
  ~FullDisk() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_;
};

// Of step 1; longer than what is kept of the steps after it, whose file is no larger then.
std::string WideLine() { return R"({"step":1,"filler":")" + std::string(200, 'x') + "\"}"; }

class MetricsLogTest : public ::testing::Test {
 protected:
  MetricsLogTest() : kept_(memfd_create("kept", MFD_CLOEXEC)) {
    Reopen("job-1", /*last_step_kept=*/0);
  }
  // As a coordinator does, whose predecessor has the job done up to that step.
  void Reopen(const std::string& job, int64_t last_step_kept) {
    log_.reset();
    log_ = *MetricsLog::Make(*MetricsFile::Open(dir_.File("metrics.jsonl"), last_step_kept),
                             KeptLines(kept_.get(), job), last_step_kept,
                             [this](const std::string& text) { said_.push_back(text); });
  }
  std::string Read() {
    std::stringstream text;
    text << std::ifstream(dir_.File("metrics.jsonl")).rdbuf();
    return text.str();
  }
  io::TempDir dir_;
  std::vector<std::string> said_;
  ipc::UniqueFd kept_;
  std::optional<MetricsLog> log_;
};

TEST_F(MetricsLogTest, LinesThatDoNotFitFollowInOrderWhenThereIsRoom) {
  const std::string wide = WideLine();
  log_->Append(1, wide, Seconds(1));
  {
    const FullDisk full(wide.size() + 5);
    log_->Append(2, R"({"step":2})", Seconds(2));
    log_->Append(3, R"({"step":3})", Seconds(2));
    EXPECT_FALSE(log_->complete());
    log_->OnTick(Millis(2'900));  // not yet
    log_->OnTick(Seconds(3));
    EXPECT_THAT(said_, ElementsAre(HasSubstr("1 lines are kept in memory; the next try is in 1.00"),
                                   HasSubstr("2 lines are kept in memory; the next try is in 2.")));
  }
  log_->OnTick(Seconds(4));
  EXPECT_FALSE(log_->complete());
  log_->OnTick(Seconds(5));
  EXPECT_TRUE(log_->complete());
  EXPECT_EQ(said_.back(), "metrics.jsonl is complete again");
  EXPECT_EQ(Read(), wide + "\n{\"step\":2}\n{\"step\":3}\n");
}

TEST_F(MetricsLogTest, TheEndTriesAtOnce) {
  {
    const FullDisk full(5);
    log_->Append(1, R"({"step":1})", Seconds(1));
    log_->Finish(Seconds(1));
    EXPECT_FALSE(log_->complete());
  }
  log_->Finish(Seconds(1));
  EXPECT_TRUE(log_->complete());
  EXPECT_EQ(Read(), "{\"step\":1}\n");
}

TEST_F(MetricsLogTest, WhatCouldNotBeWrittenIsFoundBySuccessorsOfTheSameJob) {
  const std::string wide = WideLine();
  log_->Append(1, wide, Seconds(1));
  {
    const FullDisk full(wide.size() + 5);
    for (const int64_t step : {2, 3, 4}) {
      log_->Append(step, absl::StrCat("{\"step\":", step, "}"), Seconds(2));
    }
    EXPECT_EQ(log_->last_step(), 4);
    Reopen("job-1", 4);
    EXPECT_EQ(log_->last_step(), 4);
    log_->Finish(Seconds(3));
    EXPECT_FALSE(log_->complete());
  }
  Reopen("job-1", 3);  // it goes on from a checkpoint: step 4 is done again
  log_->Finish(Seconds(4));
  EXPECT_TRUE(log_->complete());
  EXPECT_EQ(Read(), wide + "\n{\"step\":2}\n{\"step\":3}\n");
  Reopen("job-1", 3);
  EXPECT_EQ(log_->last_step(), 3);
  EXPECT_EQ(lseek(kept_.get(), 0, SEEK_END), 0) << "they are written";
}

TEST_F(MetricsLogTest, LinesOfAnotherJobAreDropped) {
  ASSERT_TRUE(KeptLines(kept_.get(), "job-1").Add(1, R"({"step":1})").ok());
  Reopen("job-2", 9);
  EXPECT_EQ(log_->last_step(), 0);
  EXPECT_EQ(lseek(kept_.get(), 0, SEEK_END), 0);
}

}  // namespace
}  // namespace harmony::service
