#include "client/launcher/heartbeat_watch.h"

#include <gtest/gtest.h>

#include "common/base/attended_clock.h"
#include "tests/unit/common/base/fake_clock.h"

namespace harmony::client {
namespace {

constexpr Nanos kLimit = Seconds(30);

TEST(HeartbeatWatch, AWordThatStandsStillForTheLimitMeansAHang) {
  HeartbeatWatch watch(kLimit);
  watch.OnStart(Seconds(100));
  EXPECT_FALSE(watch.OnLook(1, Seconds(101)));
  EXPECT_FALSE(watch.OnLook(2, Seconds(102)));
  EXPECT_FALSE(watch.OnLook(2, Seconds(131)));
  EXPECT_TRUE(watch.OnLook(2, Seconds(132)));
}

TEST(HeartbeatWatch, EveryBeatGivesTheWholeLimitAnew) {
  HeartbeatWatch watch(kLimit);
  watch.OnStart(Seconds(0));
  for (int i = 1; i < 100; ++i) EXPECT_FALSE(watch.OnLook(i, Seconds(29) * i)) << i;
}

TEST(HeartbeatWatch, AHangIsSaidOnceALimit) {
  HeartbeatWatch watch(kLimit);
  watch.OnStart(Seconds(0));
  EXPECT_FALSE(watch.OnLook(7, Seconds(0)));
  EXPECT_TRUE(watch.OnLook(7, Seconds(30)));
  EXPECT_FALSE(watch.OnLook(7, Seconds(31)));
  EXPECT_TRUE(watch.OnLook(7, Seconds(60)));
}

TEST(HeartbeatWatch, AProcessThatNeverBeatIsFoundAndItsSuccessorHasLonger) {
  HeartbeatWatch watch(kLimit);
  watch.OnStart(Seconds(0));
  EXPECT_FALSE(watch.OnLook(0, Seconds(29)));
  EXPECT_TRUE(watch.OnLook(0, Seconds(30)));
  watch.OnStart(Seconds(100));
  EXPECT_FALSE(watch.OnLook(0, Seconds(159)));
  EXPECT_FALSE(watch.OnLook(1, Seconds(160))) << "slow to start, no more";
  EXPECT_FALSE(watch.OnLook(1, Seconds(189)));
  EXPECT_TRUE(watch.OnLook(1, Seconds(190))) << "the longer limit is for the first beat only";
  watch.OnStart(Seconds(200));
  EXPECT_TRUE(watch.OnLook(0, Seconds(230))) << "and was earned by no other hang";
}

TEST(HeartbeatWatch, TheTimeForTheFirstBeatHasAnEnd) {
  HeartbeatWatch watch(kLimit);
  Nanos now;
  for (int i = 0; i < 10; ++i) {
    watch.OnStart(now);
    now = now + Seconds(10'000);
    EXPECT_TRUE(watch.OnLook(0, now));
  }
  EXPECT_EQ(watch.limit(), kLimit * 16);
}

TEST(HeartbeatWatch, WithoutALimitNothingHangs) {
  HeartbeatWatch watch{Nanos(0)};
  watch.OnStart(Seconds(0));
  EXPECT_FALSE(watch.OnLook(0, Seconds(100'000)));
}

// The launcher was stopped, or the whole machine slept: the processes had no chance to be seen.
TEST(HeartbeatWatch, AfterTheLauncherWasStoppedProcessesGetTimeToBeat) {
  FakeClock clock;
  const AttendedClock by_launcher(clock, Seconds(1));
  HeartbeatWatch watch(kLimit);
  watch.OnStart(by_launcher.Now());
  EXPECT_FALSE(watch.OnLook(5, by_launcher.Now()));
  clock.now += Seconds(3600);
  EXPECT_FALSE(watch.OnLook(5, by_launcher.Now()));
  clock.now += Millis(100);
  EXPECT_FALSE(watch.OnLook(6, by_launcher.Now()));
  // It hangs indeed: the launcher, which looks all the time, finds it in the same time as ever.
  int looks = 0;
  while (!watch.OnLook(6, by_launcher.Now())) clock.now += Millis(500), ++looks;
  EXPECT_EQ(looks, 60);
}

}  // namespace
}  // namespace harmony::client
