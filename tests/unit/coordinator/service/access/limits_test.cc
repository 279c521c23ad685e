#include "coordinator/service/access/limits.h"

#include <gtest/gtest.h>

namespace harmony::service {
namespace {

constexpr Nanos kStart = Seconds(1000);

TEST(TokenBucketTest, GivesItsBurstAndThenItsRate) {
  TokenBucket bucket(/*per_second=*/10, /*burst=*/3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(bucket.Take(kStart));
  EXPECT_FALSE(bucket.Take(kStart));
  EXPECT_EQ(bucket.ReadyAt(kStart), kStart + Millis(100));
  EXPECT_FALSE(bucket.Take(kStart + Millis(99)));
  EXPECT_TRUE(bucket.Take(kStart + Millis(100)));
  EXPECT_FALSE(bucket.Take(kStart + Millis(100)));
  // However long nobody asks, no more than the burst.
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(bucket.Take(kStart + Seconds(60)));
  EXPECT_FALSE(bucket.Take(kStart + Seconds(60)));
}

TEST(TokenBucketTest, TakesAllOrNone) {
  TokenBucket bucket(1, 5);
  EXPECT_TRUE(bucket.Take(kStart, 3));
  EXPECT_FALSE(bucket.Take(kStart, 3));
  EXPECT_TRUE(bucket.Take(kStart, 2));
  EXPECT_EQ(bucket.ReadyAt(kStart, 4), kStart + Seconds(4));
}

PeerLimits SmallLimits() {
  PeerLimits limits;
  limits.calls_per_second = 10;
  limits.calls_burst = 4;
  limits.refusals_per_second = 1;
  limits.refusals_burst = 2;
  limits.connects_per_second = 10;
  limits.connects_burst = 5;
  limits.connections = 3;
  limits.cut_off = Seconds(2);
  return limits;
}

TEST(PeerAccountTest, ServesThenRefusesThenCutsOff) {
  PeerAccount peer(SmallLimits());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(peer.Call(kStart), Verdict::kServe);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(peer.Call(kStart), Verdict::kRefuse);
  EXPECT_TRUE(peer.Connect(kStart, 0));
  EXPECT_EQ(peer.Call(kStart), Verdict::kCutOff);
  EXPECT_FALSE(peer.Connect(kStart, 0));
  EXPECT_FALSE(peer.Connect(kStart + Millis(1999), 0));
  EXPECT_TRUE(peer.Connect(kStart + Seconds(2), 0));
  EXPECT_EQ(peer.Call(kStart + Seconds(2)), Verdict::kServe);
}

// Who keeps to the rate is never refused.
TEST(PeerAccountTest, TheRateItselfIsServedForEver) {
  PeerAccount peer(SmallLimits());
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(peer.Call(kStart + Millis(100) * i), Verdict::kServe) << i;
  }
}

TEST(PeerAccountTest, ConnectionsAreBoundedInNumberAndInRate) {
  PeerAccount peer(SmallLimits());
  EXPECT_FALSE(peer.Connect(kStart, 3));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(peer.Connect(kStart, 2)) << i;
  EXPECT_FALSE(peer.Connect(kStart, 2));
  EXPECT_TRUE(peer.Connect(kStart + Millis(100), 2));
}

TEST(PeerAccountTest, WhatPlansCountsForMore) {
  EXPECT_GT(WeightOf("/harmony.v1.Coordinator/Submit"), WeightOf("/harmony.v1.Coordinator/List"));
  PeerAccount peer(SmallLimits());
  EXPECT_EQ(peer.Call(kStart, 3), Verdict::kServe);
  EXPECT_EQ(peer.Call(kStart, 3), Verdict::kRefuse);
}

}  // namespace
}  // namespace harmony::service
