#include "common/base/random.h"

#include <gtest/gtest.h>

#include <cmath>

namespace harmony {
namespace {

// Known-answer vectors of the Random123 distribution (kat_vectors, philox4x32 with 10 rounds).
TEST(PhiloxTest, MatchesTheKnownAnswers) {
  EXPECT_EQ(Philox4x32(0, 0, 0),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32(~0ull, ~0ull, ~0ull),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(PhiloxTest, NormalsHaveMeanZeroAndVarianceOne) {
  double sum = 0, squares = 0;
  constexpr int kDraws = 100'000;
  for (int i = 0; i < kDraws; ++i) {
    for (float x : PhiloxNormal(7, i, 0)) {
      sum += x;
      squares += double{x} * x;
    }
  }
  EXPECT_NEAR(sum / (2 * kDraws), 0.0, 0.01);
  EXPECT_NEAR(squares / (2 * kDraws), 1.0, 0.02);
}

TEST(CounterRandomTest, SameSeedSameDraws) {
  CounterRandom a(5), b(5), c(6);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(a.Next64(), b.Next64());
  EXPECT_NE(a.Next64(), c.Next64());
  for (int i = 0; i < 1000; ++i) EXPECT_LT(a.Below(7), 7u);
}

}  // namespace
}  // namespace harmony
