#include "bench/published_planner/cost_model/layer_profile.h"

#include <gtest/gtest.h>

namespace harmony::published {
namespace {

TEST(LayerProfileTest, SizesBetweenMeasuredOnesAreInterpolated) {
  const PhaseProfile phase{{2, 4, 8}, {{1.0, 2.0, 10.0}}, {{100, 201, 300}}};
  EXPECT_DOUBLE_EQ(At(phase, "fwd", 4)->time_s[0], 2);
  EXPECT_DOUBLE_EQ(At(phase, "fwd", 3)->time_s[0], 1.5);
  EXPECT_EQ(At(phase, "fwd", 3)->peak_bytes[0], 150);  // cut, not rounded
  EXPECT_DOUBLE_EQ(At(phase, "fwd", 7)->time_s[0], 8);
  EXPECT_FALSE(Covers(phase, 1));
  EXPECT_TRUE(Covers(phase, 8));
  EXPECT_EQ(At(phase, "fwd", 9).status().message(),
            "microbatch 9 is outside fwd.microbatch, which goes from 2 to 8");
}

}  // namespace
}  // namespace harmony::published
