#include "coordinator/store/job_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace harmony::store {
namespace {

using ::testing::HasSubstr;

class JobStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "storeXXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

JobRecord Example() {
  JobRecord record;
  record.state = JobState::kRunning;
  record.stop = StopIntent::kPause;
  record.yaml = "seed: 1 # \xc3\xa4";
  record.plan = std::string("\0\1binary", 8);
  record.output_dir = "/out";
  record.max_steps = 10;
  record.last_loss = 5.123456789012345;
  record.error = "it's";
  record.error_code = 13;
  record.summary_json = "{}";
  record.profile = "{\"schema\": 1}";
  record.replan = "{\"step\": 7}";
  return record;
}

TEST_F(JobStoreTest, KeepsEveryFieldAcrossOpenings) {
  {
    auto store = JobStore::Open(folder_);
    ASSERT_TRUE(store.ok()) << store.status();
    JobRecord first = Example(), second = Example();
    ASSERT_TRUE((*store)->Insert(&first).ok());
    ASSERT_TRUE((*store)->Insert(&second).ok());
    EXPECT_EQ(first.id(), "job-1");
    EXPECT_EQ(second.id(), "job-2");
    second.state = JobState::kFailed;
    ASSERT_TRUE((*store)->Save(second).ok());
    ASSERT_TRUE((*store)->SaveProgress(1, 7, 0.25).ok());
    ASSERT_TRUE((*store)->AppendLog(1, {"now", "hello"}).ok());
  }
  auto store = JobStore::Open(folder_);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto records = (*store)->LoadAll();
  ASSERT_TRUE(records.ok()) << records.status();
  ASSERT_EQ(records->size(), 2u);
  const JobRecord& record = (*records)[0];
  EXPECT_EQ(record.state, JobState::kRunning);
  EXPECT_EQ(record.stop, StopIntent::kPause);
  EXPECT_EQ(record.plan, Example().plan);
  EXPECT_EQ(record.yaml, Example().yaml);
  EXPECT_EQ(record.profile, Example().profile);
  EXPECT_EQ(record.replan, Example().replan);
  EXPECT_EQ(record.completed_steps, 7);
  EXPECT_EQ(record.last_loss, 0.25);
  EXPECT_EQ(record.error, "it's");
  EXPECT_EQ((*records)[1].state, JobState::kFailed);
  EXPECT_EQ((*records)[1].last_loss, 5.123456789012345);
  const auto log = (*store)->ReadLog(1);
  ASSERT_EQ(log->size(), 1u);
  EXPECT_EQ((*log)[0].text, "hello");
  EXPECT_TRUE((*store)->ReadLog(2)->empty());
}

TEST_F(JobStoreTest, TakesOverADatabaseOfTheFirstSchema) {
  {
    JobRecord record = Example();
    ASSERT_TRUE((*JobStore::Open(folder_))->Insert(&record).ok());
  }
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((folder_ + "/jobs.sqlite").c_str(), &db), SQLITE_OK);
  const char* const back =
      "ALTER TABLE jobs DROP COLUMN profile;"
      "ALTER TABLE jobs DROP COLUMN replan; PRAGMA user_version = 1";
  EXPECT_EQ(sqlite3_exec(db, back, nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  auto store = JobStore::Open(folder_);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto records = (*store)->LoadAll();
  ASSERT_EQ(records->size(), 1u);
  EXPECT_EQ((*records)[0].yaml, Example().yaml);
  EXPECT_EQ((*records)[0].profile, "");
}

TEST_F(JobStoreTest, WhatIsRemovedIsGoneWithItsLogAndItsNumberIsNotGivenAgain) {
  for (const int64_t expected : {1, 4}) {
    auto store = JobStore::Open(folder_);
    ASSERT_TRUE(store.ok()) << store.status();
    for (int64_t number = expected; number <= 3; ++number) {
      JobRecord record = Example();
      ASSERT_TRUE((*store)->Insert(&record).ok());
      ASSERT_TRUE((*store)->AppendLog(number, {"now", "hello"}).ok());
    }
    ASSERT_TRUE((*store)->Remove({1, 3}).ok());
    const auto records = (*store)->LoadAll();
    ASSERT_EQ(records->size(), 1u);
    EXPECT_EQ((*records)[0].number, 2);
    EXPECT_TRUE((*store)->ReadLog(3)->empty());
    EXPECT_EQ((*store)->ReadLog(2)->size(), 1u);
  }
  JobRecord next = Example();
  ASSERT_TRUE((*JobStore::Open(folder_))->Insert(&next).ok());
  EXPECT_EQ(next.id(), "job-4");
}

TEST_F(JobStoreTest, IsForOneProcessAtATime) {
  auto store = JobStore::Open(folder_);
  ASSERT_TRUE(store.ok());
  const auto second = JobStore::Open(folder_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another coordinator"));
}

TEST_F(JobStoreTest, ACopyShowsWhatAnotherProcessHasWrittenAndLeavesNoTrace) {
  const auto names = [this] {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      found.push_back(entry.path().filename());
    }
    std::sort(found.begin(), found.end());
    return found;
  };
  int64_t holder = -1;
  auto none = JobStore::OpenCopy(folder_, &holder);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE((*none)->LoadAll()->empty());
  EXPECT_EQ(holder, 0);
  EXPECT_TRUE(names().empty());

  // A process that has it open, as it never lets go of it.
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto store = JobStore::Open(folder_);
    JobRecord record = Example();
    if (!store.ok() || !(*store)->Insert(&record).ok()) _exit(1);
    if (!(*store)->AppendLog(1, {"now", "hello"}).ok() || write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const std::vector<std::string> before = names();
  for (const int64_t expected : {static_cast<int64_t>(child), int64_t{0}}) {
    auto copy = JobStore::OpenCopy(folder_, &holder);
    ASSERT_TRUE(copy.ok()) << copy.status();
    const auto records = (*copy)->LoadAll();
    ASSERT_TRUE(records.ok()) << records.status();
    ASSERT_EQ(records->size(), 1u);
    EXPECT_EQ((*records)[0].yaml, Example().yaml);
    EXPECT_EQ((*copy)->ReadLog(1)->size(), 1u);
    EXPECT_EQ(holder, expected);
    EXPECT_EQ(names(), before);
    // Killed, it leaves what it wrote in the log beside the database.
    if (expected != 0) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }
  close(ready[0]);
  close(ready[1]);
  std::filesystem::remove(folder_ + "/jobs.sqlite-wal");
  std::ofstream(folder_ + "/jobs.sqlite") << std::string(4096, 'x');
  const auto damaged = JobStore::OpenCopy(folder_, &holder);
  EXPECT_EQ(damaged.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(damaged.status().message()), HasSubstr(folder_ + "/jobs.sqlite"));
}

// Writes as fast as it can and tells the parent after each commit.
[[noreturn]] void WriteUntilKilled(const std::string& folder, int report_fd) {
  auto store = JobStore::Open(folder);
  JobRecord record = Example();
  if (!store.ok() || !(*store)->Insert(&record).ok()) _exit(1);
  for (int64_t step = 1;; ++step) {
    if (!(*store)->SaveProgress(record.number, step, 0).ok()) _exit(1);
    if (write(report_fd, &step, sizeof(step)) != sizeof(step)) _exit(1);
  }
}

// The log is moved into the database again and again, under the copy's feet.
TEST_F(JobStoreTest, CopiesAreWholeWhileAnotherProcessWrites) {
  const pid_t child = fork();
  if (child == 0) WriteUntilKilled(folder_, open("/dev/null", O_WRONLY));
  int64_t step = 0, holder = 0;
  for (int i = 0; i < 100; ++i) {
    auto copy = JobStore::OpenCopy(folder_, &holder);
    ASSERT_TRUE(copy.ok()) << copy.status();
    const auto records = (*copy)->LoadAll();
    ASSERT_TRUE(records.ok()) << records.status();
    if (records->empty()) continue;  // it has only just begun
    EXPECT_EQ((*records)[0].yaml, Example().yaml);
    EXPECT_GE((*records)[0].completed_steps, step);
    step = (*records)[0].completed_steps;
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_GT(step, 0);
  EXPECT_EQ(holder, child);
}

TEST_F(JobStoreTest, SurvivesAKillAndLosesNothingCommitted) {
  int64_t inserted = 0;
  for (int round = 0; round < 5; ++round) {
    int pipe_fds[2];
    ASSERT_EQ(pipe(pipe_fds), 0);
    const pid_t child = fork();
    if (child == 0) WriteUntilKilled(folder_, pipe_fds[1]);
    close(pipe_fds[1]);
    int64_t step = 0;
    while (step < 20 + round * 7) ASSERT_EQ(read(pipe_fds[0], &step, sizeof(step)), 8);
    kill(child, SIGKILL);
    while (read(pipe_fds[0], &step, sizeof(step)) == 8) {
    }
    close(pipe_fds[0]);
    waitpid(child, nullptr, 0);
    auto store = JobStore::Open(folder_);
    ASSERT_TRUE(store.ok()) << store.status();
    const auto records = (*store)->LoadAll();
    ASSERT_TRUE(records.ok()) << records.status();
    ASSERT_EQ(static_cast<int64_t>(records->size()), ++inserted);
    EXPECT_GE(records->back().completed_steps, step);
  }
}

}  // namespace
}  // namespace harmony::store
