#include "common/ipc/semaphore.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <limits>
#include <thread>
#include <vector>

#include "common/base/random.h"
#include "common/ipc/fd_passing.h"

namespace harmony::ipc {
namespace {

// A few cells and a generation word in memory that children share.
class SemaphoreTest : public testing::Test {
 protected:
  struct Shared {
    std::atomic<uint32_t> generation;
    SemaphoreCell cells[4];
  };

  void SetUp() override {
    auto fd = CreateDeviceRegion(0, Bytes(sizeof(Shared)).AlignUp(4096));
    ASSERT_TRUE(fd.ok()) << fd.status();
    auto map = MappedRegion::Map(fd->get());
    ASSERT_TRUE(map.ok()) << map.status();
    map_ = *std::move(map);
    shared_ = reinterpret_cast<Shared*>(map_.data());
    shared_->generation.store(1);
  }
  TimelineSemaphore At(int i) { return TimelineSemaphore(&shared_->cells[i]); }
  GenerationGuard Guard(uint32_t generation = 1) { return {&shared_->generation, generation}; }

  MappedRegion map_;
  Shared* shared_ = nullptr;
};

TEST_F(SemaphoreTest, ReachedValueReturnsAtOnce) {
  At(0).Signal(3);
  EXPECT_TRUE(At(0).WaitFor(3, Guard()).ok());
  EXPECT_TRUE(At(0).WaitFor(1, Guard()).ok());
}

TEST_F(SemaphoreTest, ValueNeverFalls) {
  At(0).Signal(5);
  At(0).Signal(2);
  EXPECT_EQ(At(0).value(), 5u);
}

TEST_F(SemaphoreTest, DeadlineIsReported) {
  const absl::Status status = At(0).WaitFor(1, Guard(), Millis(5));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
}

TEST_F(SemaphoreTest, OldGenerationIsAbortedEvenWhenTheValueIsReached) {
  At(0).Signal(9);
  EXPECT_EQ(At(0).WaitFor(1, Guard(2)).code(), absl::StatusCode::kAborted);
}

TEST_F(SemaphoreTest, PoisonReleasesAWaiterAsAborted) {
  std::thread waiter(
      [&] { EXPECT_EQ(At(0).WaitFor(1, Guard()).code(), absl::StatusCode::kAborted); });
  shared_->generation.store(2);
  At(0).Poison();
  waiter.join();
  EXPECT_EQ(At(0).value(), std::numeric_limits<uint64_t>::max());
}

TEST_F(SemaphoreTest, GenerationChangeAloneIsNoticedWithoutAWake) {
  std::thread waiter(
      [&] { EXPECT_EQ(At(0).WaitFor(1, Guard()).code(), absl::StatusCode::kAborted); });
  shared_->generation.store(2);
  waiter.join();
}

// Two threads hand a plain variable to and fro; ThreadSanitizer checks the ordering.
TEST_F(SemaphoreTest, PingPongHandsDataOver) {
  constexpr uint64_t kRounds = 2000;
  uint64_t data = 0;
  std::thread other([&] {
    for (uint64_t k = 1; k <= kRounds; ++k) {
      ASSERT_TRUE(At(0).WaitFor(k, Guard()).ok());
      ++data;
      At(1).Signal(k);
    }
  });
  for (uint64_t k = 1; k <= kRounds; ++k) {
    ++data;
    At(0).Signal(k);
    ASSERT_TRUE(At(1).WaitFor(k, Guard()).ok());
  }
  other.join();
  EXPECT_EQ(data, 2 * kRounds);
}

TEST_F(SemaphoreTest, ManyWaitersOfManyValues) {
  std::vector<std::thread> waiters;
  for (uint64_t i = 1; i <= 8; ++i) {
    waiters.emplace_back([&, i] { EXPECT_TRUE(At(0).WaitFor(i * 100, Guard()).ok()); });
  }
  for (uint64_t v = 1; v <= 800; ++v) At(0).Signal(v);
  for (std::thread& t : waiters) t.join();
}

// Children ping-pong with this process and are killed at random moments; each successor goes on
// where the semaphores stand. Shows that no death leaves a semaphore unusable.
TEST_F(SemaphoreTest, KilledPeersLeaveTheSemaphoresUsable) {
  constexpr int kKills = 40;
  CounterRandom random(20261121);
  for (int kill_number = 0; kill_number < kKills; ++kill_number) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {  // echoes: semaphore 1 follows semaphore 0
      while (true) {
        const uint64_t next = At(1).value() + 1;
        if (!At(0).WaitFor(next, Guard()).ok()) _exit(0);
        At(1).Signal(next);
      }
    }
    const uint64_t rounds = 1 + random.Below(200);
    for (uint64_t k = 0; k < rounds; ++k) {
      const uint64_t next = At(0).value() + 1;
      At(0).Signal(next);
      ASSERT_TRUE(At(1).WaitFor(next, Guard(), Seconds(20)).ok());
    }
    // Half of the time it dies in a race with a signal, else asleep.
    if (random.Below(2) == 0) At(0).Signal(At(0).value() + 1);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    // Its last answer may be missing: the successor gives it.
    if (At(1).value() < At(0).value()) At(1).Signal(At(0).value());
  }
}

}  // namespace
}  // namespace harmony::ipc
