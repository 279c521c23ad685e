#include "common/base/units.h"

#include <gtest/gtest.h>

#include <limits>

namespace harmony {
namespace {

TEST(UnitsTest, ParsesBinaryAndDecimalSuffixes) {
  EXPECT_EQ(*ParseBytes("256MiB"), MiB(256));
  EXPECT_EQ(*ParseBytes("1.5GB"), Bytes(1'500'000'000));
  EXPECT_EQ(*ParseBytes("4096"), Bytes(4096));
  EXPECT_EQ(ParseBytesPerSecond("1GB/s")->value, 1e9);
  EXPECT_EQ(ParseFlops("20G")->value, 20e9);
}

TEST(UnitsTest, RefusesWhatIsNoSize) {
  for (const char* text : {"", "abc", "12XB", "-1MiB", "nan", "1e300GiB"}) {
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
  }
}

TEST(UnitsTest, SecondsSaturate) {
  EXPECT_EQ(Nanos::FromSeconds(1.5), Nanos(1'500'000'000));
  EXPECT_EQ(Nanos::FromSeconds(1e10), Seconds(1'000'000));
  EXPECT_EQ(Nanos::FromSeconds(1e300), Seconds(1'000'000));
  EXPECT_EQ(Nanos::FromSeconds(std::numeric_limits<double>::infinity()), Seconds(1'000'000));
  EXPECT_EQ(Nanos::FromSeconds(std::numeric_limits<double>::quiet_NaN()), Seconds(1'000'000));
}

TEST(UnitsTest, AlignsUp) {
  EXPECT_EQ(Bytes(1).AlignUp(64), Bytes(64));
  EXPECT_EQ(Bytes(64).AlignUp(64), Bytes(64));
  EXPECT_EQ(Bytes(0).AlignUp(64), Bytes(0));
}

TEST(FormatDuration, IsAsPeopleSayIt) {
  EXPECT_EQ(FormatDuration(Nanos(1'500)), "1.50 us");
  EXPECT_EQ(FormatDuration(Millis(25)), "25.00 ms");
  EXPECT_EQ(FormatDuration(Millis(59'990)), "59.99 s");
  EXPECT_EQ(FormatDuration(Seconds(60)), "1 min");
  EXPECT_EQ(FormatDuration(Millis(90'600)), "1 min 31 s");
  EXPECT_EQ(FormatDuration(Seconds(13'440)), "3 h 44 min");
  EXPECT_EQ(FormatDuration(Seconds(2 * 86'400 + 59)), "2 d");
}

}  // namespace
}  // namespace harmony
