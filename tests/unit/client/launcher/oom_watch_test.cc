#include "client/launcher/oom_watch.h"

#include <gtest/gtest.h>

namespace harmony::client {
namespace {

TEST(OomWatchTest, ADeathSoonAfterTheCountRoseMayBeOneOfThose) {
  OomWatch watch;
  watch.Look(5, Seconds(1));  // of long ago
  EXPECT_FALSE(watch.MayHaveKilled(Seconds(1)));
  watch.Look(5, Seconds(2));
  EXPECT_FALSE(watch.MayHaveKilled(Seconds(2)));
  watch.Look(6, Seconds(3));
  EXPECT_TRUE(watch.MayHaveKilled(Seconds(3)));
  watch.Look(6, Seconds(4));
  EXPECT_TRUE(watch.MayHaveKilled(Seconds(22)));
  EXPECT_FALSE(watch.MayHaveKilled(Seconds(23)));
}

TEST(OomWatchTest, AKernelThatDoesNotSayHasKilledNobody) {
  OomWatch watch;
  watch.Look(std::nullopt, Seconds(1));
  watch.Look(std::nullopt, Seconds(2));
  EXPECT_FALSE(watch.MayHaveKilled(Seconds(2)));
}

}  // namespace
}  // namespace harmony::client
