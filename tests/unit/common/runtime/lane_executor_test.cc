#include "common/runtime/lane_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>

#include "common/base/random.h"

namespace harmony::runtime {
namespace {

using ::testing::ElementsAre;

// Semaphores of one generation, in memory.
class FakeSemaphores : public LaneSemaphores {
 public:
  absl::Status Wait(uint32_t generation, uint32_t index, uint64_t value,
                    const std::atomic<bool>& cancelled) override {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    // Cancellation is polled, as in the segment.
    while (generation == generation_ && values_[index] < value && !cancelled.load()) {
      changed_.wait_for(lock, std::chrono::milliseconds(1));
    }
    --waiting_;
    changed_.notify_all();
    if (generation != generation_ || cancelled.load()) return absl::AbortedError("over");
    return absl::OkStatus();
  }
  void Signal(uint32_t generation, uint32_t index, uint64_t value) override {
    std::lock_guard lock(mutex_);
    EXPECT_EQ(generation, generation_);
    EXPECT_EQ(values_[index] + 1, value);
    values_[index] = value;
    changed_.notify_all();
  }
  void Begin(uint32_t generation) {
    std::lock_guard lock(mutex_);
    generation_ = generation;
    values_.clear();
    changed_.notify_all();
  }
  void AwaitWaiter() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }
  void AwaitNoWaiter() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ == 0; });
  }
  void AwaitValue(uint32_t index, uint64_t value) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return values_[index] >= value; });
  }
  uint64_t value(uint32_t index) {
    std::lock_guard lock(mutex_);
    return values_[index];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t generation_ = 0;
  int waiting_ = 0;
  std::map<uint32_t, uint64_t> values_;
};

// Collects what the sink is given.
class Reports {
 public:
  LaneExecutor::Sink sink() {
    return [this](std::vector<LaneReport> reports) {
      std::lock_guard lock(mutex_);
      for (LaneReport& report : reports) {
        for (const CompletedCommand& done : report.completed) {
          EXPECT_LE(done.received, done.start);
          EXPECT_LE(done.start, done.end);
          completed_[report.lane].push_back(done.value);
        }
        if (!report.failure.ok()) failures_.push_back(report);
      }
      ++calls_;
      changed_.notify_all();
    };
  }
  std::vector<uint64_t> AwaitCompleted(uint32_t lane, size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return completed_[lane].size() >= count; });
    return completed_[lane];
  }
  LaneReport AwaitFailure() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !failures_.empty(); });
    return failures_.front();
  }
  size_t failures() {
    std::lock_guard lock(mutex_);
    return failures_.size();
  }
  int calls() {
    std::lock_guard lock(mutex_);
    return calls_;
  }
  size_t completed(uint32_t lane) {
    std::lock_guard lock(mutex_);
    return completed_[lane].size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint32_t, std::vector<uint64_t>> completed_;
  std::vector<LaneReport> failures_;
  int calls_ = 0;
};

command::Command Make(uint32_t lane, uint64_t value,
                      std::vector<command::SemaphoreWait> waits = {}) {
  command::Command command;
  command.header.id = value;
  command.header.lane = lane;
  command.header.signal_value = value;
  command.header.waits = std::move(waits);
  command.body = command::Transfer{};
  return command;
}

absl::Status Nothing(const command::Command&, const AwaitSemaphore&) { return absl::OkStatus(); }

TEST(LaneExecutorTest, RunsInOrderAndSignalsAfterTheWork) {
  FakeSemaphores semaphores;
  Reports reports;
  std::vector<uint64_t> ran;
  auto body = [&](const command::Command& command, const AwaitSemaphore&) {
    EXPECT_EQ(semaphores.value(3), command.header.signal_value - 1);
    ran.push_back(command.header.signal_value);
    return absl::OkStatus();
  };
  LaneExecutor executor({{3, "a", body}}, &semaphores, reports.sink());
  semaphores.Begin(1);
  ASSERT_TRUE(executor.StartGeneration(1).ok());
  executor.Enqueue(1, {Make(3, 1), Make(3, 2), Make(3, 3)});
  EXPECT_THAT(reports.AwaitCompleted(3, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(ran, ElementsAre(1, 2, 3));
  EXPECT_EQ(semaphores.value(3), 3);
}

TEST(LaneExecutorTest, WaitsForAnotherLane) {
  FakeSemaphores semaphores;
  Reports reports;
  std::promise<void> open;
  auto gate = [&](const command::Command&, const AwaitSemaphore&) {
    open.get_future().wait();
    return absl::OkStatus();
  };
  std::atomic<bool> second_ran{false};
  auto second = [&](const command::Command&, const AwaitSemaphore&) {
    second_ran = true;
    return absl::OkStatus();
  };
  LaneExecutor executor({{0, "a", gate}, {1, "b", second}}, &semaphores, reports.sink());
  semaphores.Begin(7);
  ASSERT_TRUE(executor.StartGeneration(7).ok());
  executor.Enqueue(7, {Make(0, 1), Make(1, 1, {{0, 1}})});
  semaphores.AwaitWaiter();
  EXPECT_FALSE(second_ran);
  open.set_value();
  EXPECT_THAT(reports.AwaitCompleted(1, 1), ElementsAre(1));
}

// A body may wait on its way; the end of the generation ends that, and is no failure.
TEST(LaneExecutorTest, ABodyWaitsForAnotherLane) {
  FakeSemaphores semaphores;
  Reports reports;
  std::atomic<int> began{0};
  auto body = [&](const command::Command& command, const AwaitSemaphore& await) {
    ++began;
    return await({0, command.header.signal_value});
  };
  LaneExecutor executor({{0, "a", Nothing}, {1, "b", body}}, &semaphores, reports.sink());
  semaphores.Begin(7);
  ASSERT_TRUE(executor.StartGeneration(7).ok());
  executor.Enqueue(7, {Make(1, 1), Make(1, 2)});
  semaphores.AwaitWaiter();
  EXPECT_EQ(began, 1);
  EXPECT_EQ(reports.completed(1), 0);
  executor.Enqueue(7, {Make(0, 1)});
  EXPECT_THAT(reports.AwaitCompleted(1, 1), ElementsAre(1));
  semaphores.AwaitWaiter();
  executor.Quiesce();
  EXPECT_EQ(semaphores.value(1), 1);
  EXPECT_EQ(began, 2);
  semaphores.Begin(8);
  ASSERT_TRUE(executor.StartGeneration(8).ok());
  executor.Enqueue(8, {Make(0, 1), Make(1, 1)});
  reports.AwaitCompleted(1, 2);
}

// The generation's word is raised before anybody is told to stop: that is no failure.
TEST(LaneExecutorTest, ABodyWhoseWaitEndsWithTheGenerationHasNotFailed) {
  FakeSemaphores semaphores;
  Reports reports;
  auto waiting = [](const command::Command&, const AwaitSemaphore& await) { return await({2, 1}); };
  auto failing = [](const command::Command&, const AwaitSemaphore&) {
    return absl::InternalError("the only failure");
  };
  LaneExecutor executor({{0, "a", failing}, {1, "b", waiting}}, &semaphores, reports.sink());
  semaphores.Begin(7);
  ASSERT_TRUE(executor.StartGeneration(7).ok());
  executor.Enqueue(7, {Make(1, 1)});
  semaphores.AwaitWaiter();
  semaphores.Begin(8);
  semaphores.AwaitNoWaiter();
  executor.Enqueue(7, {Make(0, 1)});
  EXPECT_EQ(reports.AwaitFailure().lane, 0);
  EXPECT_EQ(reports.failures(), 1);
}

TEST(LaneExecutorTest, AFailureIsNotSignalledAndStopsItsLaneOnly) {
  FakeSemaphores semaphores;
  Reports reports;
  auto failing = [](const command::Command& command, const AwaitSemaphore&) {
    return command.header.signal_value == 2 ? absl::ResourceExhaustedError("no memory")
                                            : absl::OkStatus();
  };
  LaneExecutor executor({{0, "a", failing}, {1, "b", Nothing}}, &semaphores, reports.sink());
  semaphores.Begin(1);
  ASSERT_TRUE(executor.StartGeneration(1).ok());
  executor.Enqueue(1, {Make(0, 1), Make(0, 2), Make(0, 3)});
  const LaneReport failure = reports.AwaitFailure();
  EXPECT_EQ(failure.failed_value, 2);
  EXPECT_EQ(failure.generation, 1);
  EXPECT_EQ(failure.failure.code(), absl::StatusCode::kResourceExhausted);
  executor.Enqueue(1, {Make(0, 4), Make(1, 1)});
  reports.AwaitCompleted(1, 1);
  EXPECT_EQ(semaphores.value(0), 1);
  // The next generation has working lanes again.
  executor.Quiesce();
  semaphores.Begin(2);
  ASSERT_TRUE(executor.StartGeneration(2).ok());
  executor.Enqueue(2, {Make(0, 1)});
  reports.AwaitCompleted(0, 2);
}

// Aborted is also what a stale file handle gives: only the end of the generation is silent.
TEST(LaneExecutorTest, AnAbortedBodyIsReported) {
  FakeSemaphores semaphores;
  Reports reports;
  auto failing = [](const command::Command&, const AwaitSemaphore&) {
    return absl::AbortedError("stale file handle");
  };
  LaneExecutor executor({{0, "a", failing}}, &semaphores, reports.sink());
  semaphores.Begin(1);
  ASSERT_TRUE(executor.StartGeneration(1).ok());
  executor.Enqueue(1, {Make(0, 1)});
  const LaneReport failure = reports.AwaitFailure();
  EXPECT_EQ(failure.failed_value, 1);
  EXPECT_EQ(failure.failure, absl::AbortedError("stale file handle"));
}

TEST(LaneExecutorTest, ACommandOutOfSequenceFails) {
  FakeSemaphores semaphores;
  Reports reports;
  LaneExecutor executor({{0, "a", Nothing}}, &semaphores, reports.sink());
  semaphores.Begin(1);
  ASSERT_TRUE(executor.StartGeneration(1).ok());
  executor.Enqueue(1, {Make(0, 1), Make(0, 3)});
  EXPECT_EQ(reports.AwaitFailure().failure.code(), absl::StatusCode::kInternal);
}

TEST(LaneExecutorTest, ACommandOfAnUnknownLaneFails) {
  FakeSemaphores semaphores;
  Reports reports;
  LaneExecutor executor({{0, "a", Nothing}}, &semaphores, reports.sink());
  semaphores.Begin(1);
  ASSERT_TRUE(executor.StartGeneration(1).ok());
  executor.Enqueue(1, {Make(9, 1)});
  EXPECT_EQ(reports.AwaitFailure().failed_value, 1);
}

TEST(LaneExecutorTest, CommandsOfAnotherGenerationAreDropped) {
  FakeSemaphores semaphores;
  Reports reports;
  LaneExecutor executor({{0, "a", Nothing}}, &semaphores, reports.sink());
  executor.Enqueue(1, {Make(0, 1)});
  semaphores.Begin(5);
  ASSERT_TRUE(executor.StartGeneration(5).ok());
  executor.Enqueue(4, {Make(0, 1), Make(0, 2)});
  executor.Enqueue(5, {Make(0, 1)});
  EXPECT_THAT(reports.AwaitCompleted(0, 1), ElementsAre(1));
  EXPECT_FALSE(executor.StartGeneration(6).ok()) << "not quiesced";
  executor.Quiesce();
  EXPECT_FALSE(executor.StartGeneration(5).ok()) << "not above";
  executor.Enqueue(5, {Make(0, 2)});
  semaphores.Begin(6);
  ASSERT_TRUE(executor.StartGeneration(6).ok());
  executor.Enqueue(6, {Make(0, 1)});
  EXPECT_THAT(reports.AwaitCompleted(0, 2), ElementsAre(1, 1));
  EXPECT_EQ(reports.failures(), 0);
}

TEST(LaneExecutorTest, QuiesceEndsWaitsAndDropsTheQueue) {
  FakeSemaphores semaphores;
  Reports reports;
  LaneExecutor executor({{0, "a", Nothing}}, &semaphores, reports.sink());
  semaphores.Begin(1);
  ASSERT_TRUE(executor.StartGeneration(1).ok());
  executor.Enqueue(1, {Make(0, 1, {{8, 1}}), Make(0, 2)});
  semaphores.AwaitWaiter();
  executor.Quiesce();
  EXPECT_EQ(semaphores.value(0), 0);
  EXPECT_EQ(executor.generation(), 0);
}

TEST(LaneExecutorTest, QuiesceLetsTheRunningBodyFinishWithoutASignal) {
  FakeSemaphores semaphores;
  Reports reports;
  std::promise<void> started, open;
  std::atomic<bool> finished{false};
  auto body = [&](const command::Command&, const AwaitSemaphore&) {
    started.set_value();
    open.get_future().wait();
    finished = true;
    return absl::OkStatus();
  };
  LaneExecutor executor({{0, "a", body}}, &semaphores, reports.sink());
  semaphores.Begin(1);
  ASSERT_TRUE(executor.StartGeneration(1).ok());
  executor.Enqueue(1, {Make(0, 1)});
  started.get_future().wait();
  auto quiesced = std::async(std::launch::async, [&] { executor.Quiesce(); });
  while (executor.generation() != 0) std::this_thread::yield();
  EXPECT_FALSE(finished);
  open.set_value();
  quiesced.wait();
  EXPECT_TRUE(finished);
  EXPECT_EQ(semaphores.value(0), 0);
  EXPECT_EQ(reports.completed(0), 0);
}

TEST(LaneExecutorTest, ReportsAreBatchedWhileTheSinkIsBusy) {
  FakeSemaphores semaphores;
  Reports reports;
  std::promise<void> open;
  std::shared_future<void> opened = open.get_future().share();
  auto sink = [&, inner = reports.sink()](std::vector<LaneReport> batch) {
    opened.wait();
    inner(std::move(batch));
  };
  LaneExecutor executor({{0, "a", Nothing}}, &semaphores, sink);
  semaphores.Begin(1);
  ASSERT_TRUE(executor.StartGeneration(1).ok());
  std::vector<command::Command> commands;
  for (uint64_t value = 1; value <= 100; ++value) commands.push_back(Make(0, value));
  executor.Enqueue(1, std::move(commands));
  semaphores.AwaitValue(0, 100);  // a slow sink delays no lane
  open.set_value();
  EXPECT_EQ(reports.AwaitCompleted(0, 100).size(), 100);
  EXPECT_LE(reports.calls(), 3);
}

// Random command lists over several lanes and generations; each command waits only for commands
// issued before it, so all complete, whatever the timing.
TEST(LaneExecutorTest, RandomSchedulesCompleteAcrossGenerations) {
  constexpr uint64_t kSeed = 20240;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  CounterRandom random(kSeed);
  constexpr int kLanes = 5;
  FakeSemaphores semaphores;
  std::array<std::atomic<uint64_t>, kLanes> done{};
  std::vector<LaneDefinition> lanes;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    lanes.push_back({lane, "lane", [&](const command::Command& command, const AwaitSemaphore&) {
                       for (const command::SemaphoreWait& wait : command.header.waits) {
                         EXPECT_GE(done[wait.semaphore].load(), wait.value);
                       }
                       done[command.header.lane] = command.header.signal_value;
                       return absl::OkStatus();
                     }});
  }
  LaneExecutor executor(std::move(lanes), &semaphores, [](std::vector<LaneReport>) {});
  for (uint32_t generation = 1; generation <= 10; ++generation) {
    for (auto& value : done) value = 0;
    semaphores.Begin(generation);
    ASSERT_TRUE(executor.StartGeneration(generation).ok());
    std::array<uint64_t, kLanes> issued{};
    for (int i = 0; i < 200; ++i) {
      const uint32_t lane = random.Below(kLanes);
      std::vector<command::SemaphoreWait> waits;
      const uint32_t other = random.Below(kLanes);
      if (issued[other] > 0) waits.push_back({other, 1 + random.Below(issued[other])});
      executor.Enqueue(generation, {Make(lane, ++issued[lane], waits)});
    }
    if (generation % 2 == 0) {
      for (uint32_t lane = 0; lane < kLanes; ++lane) semaphores.AwaitValue(lane, issued[lane]);
    }
    executor.Quiesce();
  }
}

}  // namespace
}  // namespace harmony::runtime
