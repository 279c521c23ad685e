#include "coordinator/service/jobs/job_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/common/io/temp_dir.h"

namespace harmony::service {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class JobRegistryTest : public ::testing::Test {
 protected:
  JobRegistry Open() { return *JobRegistry::Open(*store::JobStore::Open(dir_.path())); }
  static void Add(JobRegistry& registry, store::JobState state, const std::string& ended_at) {
    store::JobRecord record;
    record.state = state;
    record.ended_at = ended_at;
    ASSERT_TRUE(registry.Add(record).ok());
  }
  static std::vector<int64_t> Numbers(JobRegistry& registry) {
    std::vector<int64_t> numbers;
    for (const auto& [number, record] : registry.jobs()) numbers.push_back(number);
    return numbers;
  }

  io::TempDir dir_;
};

TEST_F(JobRegistryTest, PruneForgetsJobsThatEndedBeforeAndNoOthers) {
  {
    JobRegistry registry = Open();
    Add(registry, store::JobState::kFinished, "2024-01-01T00:00:00.000Z");
    Add(registry, store::JobState::kFailed, "2024-02-01T00:00:00.000Z");
    Add(registry, store::JobState::kCancelled, "2024-03-01T00:00:00.000Z");
    for (int state = 1; state <= 6; ++state) Add(registry, static_cast<store::JobState>(state), "");
    Add(registry, store::JobState::kWaiting, "");
    const auto keep_none = [](int64_t) { return false; };
    EXPECT_THAT(*registry.Prune("2023-12-31T23:59:59.999Z", keep_none), IsEmpty());
    EXPECT_THAT(*registry.Prune("2024-02-01T00:00:00.001Z", [](int64_t n) { return n == 1; }),
                ElementsAre("job-2"));
    EXPECT_THAT(Numbers(registry), ElementsAre(1, 3, 4, 5, 6, 7, 8, 9, 10));
  }
  JobRegistry again = Open();
  EXPECT_THAT(Numbers(again), ElementsAre(1, 3, 4, 5, 6, 7, 8, 9, 10));
  EXPECT_THAT(*again.Prune(""), ElementsAre("job-1", "job-3"));
  EXPECT_THAT(Numbers(again), ElementsAre(4, 5, 6, 7, 8, 9, 10));
}

// A full disk, here a limit of what a file may have.
TEST_F(JobRegistryTest, AStateThatCouldNotBeSavedIsSavedLater) {
  {
    JobRegistry registry = Open();
    Add(registry, store::JobState::kRunning, "");
    store::JobRecord& record = registry.jobs().at(1);
    signal(SIGXFSZ, SIG_IGN);
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const rlimit none = {0, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
    record.state = store::JobState::kCancelled;
    registry.Save(record);
    registry.SaveUnsaved(Seconds(1));
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    registry.SaveUnsaved(Seconds(60));
  }
  JobRegistry again = Open();
  EXPECT_EQ(again.jobs().at(1).state, store::JobState::kCancelled);
}

}  // namespace
}  // namespace harmony::service
