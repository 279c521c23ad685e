#include "coordinator/runner/failure.h"

#include "gtest/gtest.h"

namespace harmony::runner {
namespace {

TEST(VerdictTest, WhatIsMissingOutsideIsWaitedForWhereSomethingWouldBeLost) {
  struct Case {
    absl::StatusCode code;
    Verdict arithmetic, start, training;
  };
  constexpr Verdict kEnd = Verdict::kEnd, kWait = Verdict::kWait, kAgain = Verdict::kTryAgain;
  const Case cases[] = {
      {absl::StatusCode::kAborted, kAgain, kAgain, kAgain},
      {absl::StatusCode::kResourceExhausted, kEnd, kWait, kWait},
      {absl::StatusCode::kUnavailable, kEnd, kWait, kWait},
      {absl::StatusCode::kNotFound, kEnd, kEnd, kWait},
      {absl::StatusCode::kFailedPrecondition, kEnd, kEnd, kWait},
      {absl::StatusCode::kDataLoss, kEnd, kEnd, kWait},
      {absl::StatusCode::kInternal, kEnd, kEnd, kEnd},
      {absl::StatusCode::kInvalidArgument, kEnd, kEnd, kEnd},
  };
  for (const Case& c : cases) {
    const absl::Status status(c.code, "x");
    EXPECT_EQ(VerdictOf(status, FailedAt::kArithmetic), c.arithmetic) << status;
    EXPECT_EQ(VerdictOf(status, FailedAt::kStart), c.start) << status;
    EXPECT_EQ(VerdictOf(status, FailedAt::kTraining), c.training) << status;
  }
}

TEST(BackOffTest, PausesGrowToAMinute) {
  BackOff tries;
  EXPECT_FALSE(tries.Due(Seconds(100)));
  EXPECT_EQ(tries.Failed(Seconds(100)), Seconds(1));
  EXPECT_FALSE(tries.Due(Millis(100'900)));
  EXPECT_TRUE(tries.Due(Seconds(101)));
  EXPECT_EQ(tries.Failed(Seconds(101)), Seconds(2));
  tries.Hurry();
  EXPECT_TRUE(tries.Due(Seconds(101)));
  for (int i = 0; i < 100; ++i) tries.Failed(Seconds(101));
  EXPECT_EQ(tries.Failed(Seconds(101)), Seconds(60));
  tries.Succeeded();
  EXPECT_FALSE(tries.failing());
  EXPECT_EQ(tries.Failed(Seconds(200)), Seconds(1));
}

}  // namespace
}  // namespace harmony::runner
