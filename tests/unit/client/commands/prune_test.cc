#include "client/commands/prune.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace harmony::client {
namespace {

TEST(ParseAgeTest, TakesAWholeNumberWithItsUnit) {
  EXPECT_EQ(*ParseAge("90s"), absl::Seconds(90));
  EXPECT_EQ(*ParseAge("45m"), absl::Minutes(45));
  EXPECT_EQ(*ParseAge("12h"), absl::Hours(12));
  EXPECT_EQ(*ParseAge("30d"), absl::Hours(30 * 24));
  EXPECT_EQ(*ParseAge("2w"), absl::Hours(14 * 24));
  EXPECT_EQ(*ParseAge("0d"), absl::ZeroDuration());
  for (const char* const wrong :
       {"", "d", "30", "-1d", "+1d", "1.5d", "1y", "d30", "99999999999999999999d", "5300w"}) {
    const auto age = ParseAge(wrong);
    EXPECT_EQ(age.status().code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(age.status().message()), ::testing::HasSubstr("--older-than"));
  }
}

}  // namespace
}  // namespace harmony::client
