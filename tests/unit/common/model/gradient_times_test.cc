#include "common/model/gradient_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/families/causal_lm.h"
#include "common/model/model_sizes.h"

namespace harmony::model {
namespace {

using ::testing::ElementsAre;

ModelSpec Model() {
  return BuildModelSpec(*ParseModelConfig(*PresetConfigJson("gpt2-mini"), "model"), 16);
}

// Of three layers alike: the forward is a third of all, or has been kept.
TEST(GradientTimesTest, ABackwardCountsAsTwoForwards) {
  const GradientTimes times(Model());
  const double third = 1.0 / 3, ninth = 1.0 / 9;
  EXPECT_THAT(
      times.Shares(BackwardTask::kRecomputes, {1, 3}),
      ElementsAre(testing::DoubleNear(third + 4 * ninth, 1e-9),
                  testing::DoubleNear(third + 2 * ninth, 1e-9), testing::DoubleNear(third, 1e-9)));
  EXPECT_THAT(times.Shares(BackwardTask::kKept, {1, 3}),
              ElementsAre(testing::DoubleNear(2 * third, 1e-9), testing::DoubleNear(third, 1e-9),
                          testing::DoubleNear(0, 1e-9)));
  // The last layer goes forward, computes its loss and goes back in one.
  EXPECT_THAT(
      times.Shares(BackwardTask::kFused, {1, 3}),
      ElementsAre(testing::DoubleNear(7 * ninth, 1e-9), testing::DoubleNear(5 * ninth, 1e-9),
                  testing::DoubleNear(2 * ninth, 1e-9)));
}

// Each layer is late by what its buffers are, and by what the ones before it were.
TEST(GradientTimesTest, ATaskStallsWhereABufferIsFreeTooLate) {
  const GradientTimes times(Model());
  GradientStall stall(times, BackwardTask::kKept, {1, 3}, Awaited::kBuffers, Nanos(1000),
                      Nanos(300));
  stall.FreeAt(3, Nanos(900));
  EXPECT_EQ(stall.total(), Nanos(0));
  stall.FreeAt(2, Nanos(1150));  // it comes there at 1100
  EXPECT_EQ(stall.total(), Nanos(50));
  stall.FreeAt(1, Nanos(1250));  // and here at 1250
  EXPECT_EQ(stall.total(), Nanos(50));
}

}  // namespace
}  // namespace harmony::model
