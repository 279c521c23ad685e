#include "common/io/float_convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/base/random.h"

namespace harmony::io {
namespace {

TEST(FloatConvertTest, SixteenBitsReturnToTheSameBits) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    ASSERT_EQ(Bf16FromFloat(FloatFromBf16(half)), half) << bits;
    ASSERT_EQ(F16FromFloat(FloatFromF16(half)), half) << bits;
  }
}

TEST(FloatConvertTest, KnownValues) {
  EXPECT_EQ(FloatFromF16(0x3c00), 1.0f);
  EXPECT_EQ(FloatFromF16(0xc000), -2.0f);
  EXPECT_EQ(FloatFromF16(0x7bff), 65504.0f);
  EXPECT_EQ(FloatFromF16(0x0001), 0x1p-24f);
  EXPECT_EQ(FloatFromBf16(0x3f80), 1.0f);
  EXPECT_EQ(F16FromFloat(65519.996f), 0x7bff);
  EXPECT_EQ(F16FromFloat(65520.0f), 0x7c00);
  EXPECT_EQ(F16FromFloat(0x1p-25f), 0x0000);                         // a tie goes to even
  EXPECT_EQ(F16FromFloat(std::nextafterf(0x1p-25f, 1.0f)), 0x0001);  // above it
  EXPECT_EQ(Bf16FromFloat(1.00390625f), 0x3f80);                     // a tie goes to even
  EXPECT_EQ(Bf16FromFloat(1.01171875f), 0x3f82);
  EXPECT_EQ(Bf16FromFloat(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(FloatFromBf16(Bf16FromFloat(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(FloatFromF16(F16FromFloat(std::bit_cast<float>(0xff800001u)))));
}

TEST(FloatConvertTest, RoundsToTheNearest) {
  CounterRandom random(1);
  for (int i = 0; i < 200'000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random.Next64()));
    if (!std::isfinite(value)) continue;
    const uint16_t half = F16FromFloat(value);
    const double error = std::abs(double{FloatFromF16(half)} - double{value});
    for (int step : {-1, 1}) {
      const double other = FloatFromF16(static_cast<uint16_t>(half + step));
      if (std::isfinite(other) && std::isfinite(error)) {
        ASSERT_LE(error, std::abs(other - double{value}));
      }
    }
  }
}

}  // namespace
}  // namespace harmony::io
