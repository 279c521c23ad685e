#include "common/io/sequence_order.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace harmony::io {
namespace {

std::vector<int64_t> Visited(const SequenceOrder& order, int64_t first, int64_t count) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) indices.push_back(order.SequenceIndex(first + i, 0));
  return indices;
}

TEST(SequenceOrderTest, InOrderAndWrapsAround) {
  const SequenceOrder order(5, 3, false, 0);
  EXPECT_EQ(order.SequenceIndex(0, 2), 2);
  EXPECT_EQ(order.SequenceIndex(1, 0), 3);
  EXPECT_EQ(order.SequenceIndex(1, 2), 0);
}

TEST(SequenceOrderTest, EveryEpochVisitsEachSequenceOnce) {
  for (const int64_t count : {1, 2, 3, 7, 64, 1000, 4097}) {
    const SequenceOrder order(count, 1, true, 42);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      const auto indices = Visited(order, epoch * count, count);
      const std::set<int64_t> unique(indices.begin(), indices.end());
      EXPECT_EQ(static_cast<int64_t>(unique.size()), count);
      EXPECT_GE(*unique.begin(), 0);
      EXPECT_LT(*unique.rbegin(), count);
    }
  }
}

TEST(SequenceOrderTest, EpochsAndSeedsDiffer) {
  const SequenceOrder a(1000, 1, true, 1), b(1000, 1, true, 2);
  EXPECT_EQ(Visited(a, 0, 1000), Visited(SequenceOrder(1000, 1, true, 1), 0, 1000));
  EXPECT_NE(Visited(a, 0, 1000), Visited(a, 1000, 1000));
  EXPECT_NE(Visited(a, 0, 1000), Visited(b, 0, 1000));
  int in_place = 0;
  for (int64_t i = 0; i < 1000; ++i) in_place += a.SequenceIndex(i, 0) == i;
  EXPECT_LT(in_place, 20);
}

}  // namespace
}  // namespace harmony::io
