#include "common/base/attended_clock.h"

#include <gtest/gtest.h>

#include "tests/unit/common/base/fake_clock.h"

namespace harmony {
namespace {

TEST(AttendedClock, GoesAsTheOtherWhileItIsLookedAt) {
  FakeClock clock;
  const AttendedClock attended(clock, Seconds(1));
  const Nanos start = attended.Now();
  for (int i = 0; i < 100; ++i) {
    clock.now += Millis(900);
    EXPECT_EQ(attended.Now() - start, Millis(900) * (i + 1));
  }
}

TEST(AttendedClock, DoesNotCountATimeInWhichNobodyLooked) {
  FakeClock clock;
  const AttendedClock attended(clock, Seconds(1));
  const Nanos deadline = attended.Now() + Seconds(30);
  clock.now += Seconds(3600);
  EXPECT_EQ(deadline - attended.Now(), Seconds(29));
  EXPECT_EQ(deadline - attended.Now(), Seconds(29)) << "a second look adds nothing";
  clock.now += Millis(500);
  EXPECT_EQ(deadline - attended.Now(), Millis(28'500));
}

}  // namespace
}  // namespace harmony
