#include "coordinator/service/replan/drift.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace harmony::service {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

TEST(DriftMonitorTest, SaysOnceWhenStepsDriftAndOnceWhenTheyCeaseTo) {
  DriftMonitor monitor(2.0);
  for (double seconds : {2.1, 1.9, 2.0, 2.2, 2.1}) EXPECT_EQ(monitor.OnStep(seconds), std::nullopt);
  EXPECT_NEAR(monitor.drift(), 0.05, 1e-9);
  EXPECT_EQ(monitor.OnStep(2.6), std::nullopt);
  EXPECT_EQ(monitor.OnStep(2.6), std::nullopt) << "two slow steps are no drift";
  EXPECT_THAT(monitor.OnStep(2.6),
              Optional(HasSubstr("drift from what the plan says: 2.6 s in the median of the last "
                                 "5, 2 s predicted (+30%)")));
  EXPECT_EQ(monitor.OnStep(2.6), std::nullopt);
  // From the third on the median is as predicted.
  for (int i = 1; i < DriftMonitor::kStepsBack + 2; ++i) {
    EXPECT_EQ(monitor.OnStep(2.0), std::nullopt);
  }
  EXPECT_TRUE(monitor.drifting());
  EXPECT_THAT(monitor.OnStep(2.0), Optional(HasSubstr("as the plan says again")));
  EXPECT_FALSE(monitor.drifting());
}

// Of 400 such steps each crossing was a line once.
TEST(DriftMonitorTest, StepsAroundTheToleranceAreOneLine) {
  DriftMonitor monitor(1.0);
  int lines = 0;
  for (int i = 0; i < 400; ++i) {
    const double now = i / 15 % 3 == 0 ? 1.08 : i / 15 % 3 == 1 ? 1.13 : 1.2;
    lines += monitor.OnStep(now).has_value();
  }
  EXPECT_EQ(lines, 1);
}

TEST(DriftMonitorTest, FasterThanPredictedIsDriftToo) {
  DriftMonitor monitor(2.0);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(monitor.OnStep(1.0), std::nullopt);
  EXPECT_THAT(monitor.OnStep(1.0), Optional(HasSubstr("(-50%)")));
}

TEST(DriftMonitorTest, OneSlowStepInFiveIsNoDrift) {
  DriftMonitor monitor(1.0);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(monitor.OnStep(i % 5 == 0 ? 9.0 : 1.1), std::nullopt);
}

}  // namespace
}  // namespace harmony::service
