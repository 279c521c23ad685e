// The order in which a step's gradients and losses are added up, which fixes bits, written out.

#include "common/model/sum_tree.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace harmony::model {
namespace {

std::string TreeOf(int count) {
  return SumTree(
      count, [](int term) { return absl::StrCat(term); },
      [](const std::string& a, const std::string& b) { return absl::StrCat("(", a, "+", b, ")"); });
}

TEST(SumTreeTest, AddsPairwise) {
  EXPECT_EQ(TreeOf(1), "0");
  EXPECT_EQ(TreeOf(2), "(0+1)");
  EXPECT_EQ(TreeOf(8), "(((0+1)+(2+3))+((4+5)+(6+7)))");
}

// In order within a replica, pairwise over replicas: each of these sums rounds otherwise.
TEST(SumTreeTest, LossesOfMicrobatchesGoTheSameWay) {
  const std::vector<double> losses = {1e16, 1, 1, 1, -1e16, 3, 1, 1};
  EXPECT_EQ(SumOfMicrobatches(losses, 1), 5);  // all in order
  EXPECT_EQ(SumOfMicrobatches(losses, 2), 4);  // (1e16 + 1 + 1 + 1) + (-1e16 + 3 + 1 + 1)
  EXPECT_EQ(SumOfMicrobatches(losses, 8), 8);  // ((1e16 + 1) + (1 + 1)) + ((-1e16 + 3) + (1 + 1))
}

// Those that a device holds while it goes through them.
TEST(SumTreeTest, NoMoreBuffersThanSumsThatWaitAndOne) {
  for (int replicas = 1; replicas <= 64; replicas *= 2) {
    int most = 0;
    for (int replica = 0; replica < replicas; ++replica) {
      most = std::max(most, WaitingSums(replica) + 1);
    }
    EXPECT_EQ(most, SumBuffers(replicas));
  }
}

}  // namespace
}  // namespace harmony::model
