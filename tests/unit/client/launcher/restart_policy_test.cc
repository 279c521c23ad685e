#include "client/launcher/restart_policy.h"

#include <gtest/gtest.h>

namespace harmony::client {
namespace {

TEST(RestartPolicy, FirstDeathIsAnsweredAtOnceAndLaterOnesEverLater) {
  RestartPolicy policy;
  EXPECT_EQ(policy.OnDeath(Seconds(100), false), Nanos(0));
  EXPECT_EQ(policy.OnDeath(Millis(10), false), Millis(50));
  EXPECT_EQ(policy.OnDeath(Millis(10), false), Millis(100));
  EXPECT_EQ(policy.OnDeath(Millis(10), false), Millis(200));
}

TEST(RestartPolicy, ALongLifeStartsAnew) {
  RestartPolicy policy;
  for (int i = 0; i < 5; ++i) policy.OnDeath(Millis(1), false);
  EXPECT_EQ(policy.OnDeath(RestartPolicy::kStable, false), Nanos(0));
  EXPECT_EQ(policy.OnDeath(Millis(1), false), RestartPolicy::kFirstDelay);
}

TEST(RestartPolicy, AProcessThatKeepsDyingByItselfIsGivenUp) {
  RestartPolicy policy;
  for (int i = 1; i < RestartPolicy::kGiveUpAfter; ++i) {
    ASSERT_TRUE(policy.OnDeath(Millis(1), false).has_value()) << i;
  }
  EXPECT_FALSE(policy.OnDeath(Millis(1), false).has_value());
}

TEST(RestartPolicy, OrNotGivenUpAndComesBackEveryFewSeconds) {
  RestartPolicy policy(/*gives_up=*/false);
  std::optional<Nanos> delay;
  for (int i = 1; i < 100; ++i) delay = policy.OnDeath(Millis(1), false);
  EXPECT_EQ(delay, RestartPolicy::kLongestDelay);
}

TEST(RestartPolicy, WhatIsKilledIsNeverGivenUpAndComesBackSoon) {
  RestartPolicy policy;
  Nanos longest;
  for (int i = 0; i < 100; ++i) {
    std::optional<Nanos> delay = policy.OnDeath(Millis(1), true);
    ASSERT_TRUE(delay.has_value());
    longest = std::max(longest, *delay);
  }
  EXPECT_EQ(longest, RestartPolicy::kLongestDelayKilled);
}

}  // namespace
}  // namespace harmony::client
