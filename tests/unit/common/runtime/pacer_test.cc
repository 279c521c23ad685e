#include "common/runtime/pacer.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace harmony::runtime {
namespace {

struct FakeClock : Clock {
  Nanos Now() const override { return now; }
  static Nanos now;
};
Nanos FakeClock::now;

void FakeSleep(Nanos deadline) { FakeClock::now = deadline; }

class PacerTest : public ::testing::Test {
 protected:
  PacerTest() { FakeClock::now = Seconds(10); }
  FakeClock clock_;
  Pacer pacer_{PacedWork::kCompute, &clock_, &FakeSleep};
};

TEST_F(PacerTest, TakesAtLeastTheModelledTime) {
  const auto reservation = pacer_.Reserve(Millis(30));
  FakeClock::now += Millis(10);  // the real work
  pacer_.FinishAt(reservation);
  EXPECT_EQ(FakeClock::now, Seconds(10) + Millis(30));
  EXPECT_EQ(pacer_.overruns(), 0);
}

TEST_F(PacerTest, ASharedResourceServesOneAfterTheOther) {
  const auto first = pacer_.Reserve(Millis(30));
  const auto second = pacer_.Reserve(Millis(20));
  EXPECT_EQ(first.deadline, Seconds(10) + Millis(30));
  EXPECT_EQ(second.deadline, Seconds(10) + Millis(50));
}

TEST_F(PacerTest, OfOneMomentWhatWasIssuedFirstGoesFirst) {
  const auto large = pacer_.Reserve(Millis(50), /*issued=*/2);
  FakeClock::now += Nanos(100'000);
  const auto small = pacer_.Reserve(Millis(2), /*issued=*/1);
  EXPECT_EQ(small.deadline, Seconds(10) + Millis(2));
  const auto behind = pacer_.Reserve(Millis(10), /*issued=*/3);
  EXPECT_EQ(behind.deadline, Seconds(10) + Millis(62));
  pacer_.FinishAt(large);
  EXPECT_EQ(FakeClock::now, Seconds(10) + Millis(52));
  EXPECT_EQ(pacer_.overruns(), 0);
  // Long after it began nobody goes before it.
  pacer_.FinishAt(behind);
  pacer_.Reserve(Millis(50), /*issued=*/5);
  FakeClock::now += Millis(10);
  EXPECT_EQ(pacer_.Reserve(Millis(2), /*issued=*/4).deadline, Seconds(10) + Millis(62 + 50 + 2));
}

// It takes its time all the same, and is not late.
TEST_F(PacerTest, WhatGoesFirstLateBeginsLate) {
  const auto large = pacer_.Reserve(Millis(50), /*issued=*/2);
  FakeClock::now += Nanos(900'000);
  const auto small = pacer_.Reserve(Nanos(300'000), /*issued=*/1);
  EXPECT_EQ(small.deadline, Seconds(10) + Millis(1));
  pacer_.FinishAt(small);
  pacer_.FinishAt(large);
  EXPECT_EQ(FakeClock::now, Seconds(10) + Millis(51));
  EXPECT_EQ(pacer_.overruns(), 0);
}

TEST_F(PacerTest, LateWakeUpsDoNotAddUp) {
  for (int i = 1; i <= 100; ++i) {
    const auto reservation = pacer_.Reserve(Millis(1));
    EXPECT_EQ(reservation.deadline, Seconds(10) + Millis(i));
    FakeClock::now = reservation.deadline + Nanos(100'000);
  }
  FakeClock::now += Seconds(1);  // idle: starts anew
  EXPECT_EQ(pacer_.Reserve(Millis(1)).deadline, FakeClock::now + Millis(1));
}

TEST_F(PacerTest, CountsOverruns) {
  const auto reservation = pacer_.Reserve(Millis(100));
  FakeClock::now += Millis(103);
  pacer_.FinishAt(reservation);
  EXPECT_EQ(pacer_.overruns(), 1);
  EXPECT_EQ(pacer_.paced(), 1);
}

TEST_F(PacerTest, ALateWakeUpIsAnOverrunToo) {
  Pacer pacer(PacedWork::kCompute, &clock_,
              [](Nanos deadline) { FakeClock::now = deadline + Millis(3); });
  pacer.FinishAt(pacer.Reserve(Millis(100)));
  EXPECT_EQ(pacer.overruns(), 1);
  pacer.FinishAt(pacer.Reserve(Millis(200)));
  EXPECT_EQ(pacer.overruns(), 1) << "within 2%";
}

// Only long computations leave the processors to others.
TEST_F(PacerTest, CopiesAndShortTasksAreDoneAtOnce) {
  const sched_param real_time{.sched_priority = 1};
  if (sched_setscheduler(0, SCHED_RR, &real_time) != 0) {
    GTEST_SKIP() << "real-time priority is not allowed here";
  }
  const sched_param ordinary{.sched_priority = 0};
  ASSERT_EQ(sched_setscheduler(0, SCHED_OTHER, &ordinary), 0);
  const auto policy = [] { return sched_getscheduler(0) & ~SCHED_RESET_ON_FORK; };
  pacer_.Reserve(Nanos(500'000));
  EXPECT_EQ(policy(), SCHED_RR);
  std::thread([&] { EXPECT_EQ(policy(), SCHED_OTHER) << "as threads that compute"; }).join();
  pacer_.Reserve(Millis(30));
  EXPECT_EQ(policy(), SCHED_OTHER);
  Pacer(PacedWork::kCopy, &clock_, &FakeSleep).Reserve(Millis(30));
  EXPECT_EQ(policy(), SCHED_RR);
  pacer_.Reserve(Millis(30));
  EXPECT_EQ(policy(), SCHED_OTHER);
}

TEST_F(PacerTest, ModelledDurationOfATransfer) {
  EXPECT_EQ(ModelledDuration(Bytes(1'000'000), BytesPerSecond{1e9}), Millis(1));
}

}  // namespace
}  // namespace harmony::runtime
