#include "coordinator/service/drift.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace harmony {
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
  EXPECT_EQ(monitor.OnStep(2.0), std::nullopt);
  EXPECT_EQ(monitor.OnStep(2.0), std::nullopt);
  EXPECT_THAT(monitor.OnStep(2.0), Optional(HasSubstr("as the plan says again")));
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
}  // namespace harmony
