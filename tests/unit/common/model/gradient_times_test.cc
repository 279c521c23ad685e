#include "common/model/gradient_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/families/causal_lm.h"
#include "common/model/model_sizes.h"

namespace harmony::model {
namespace {

using ::testing::ElementsAre;

ModelSpec Llama() {
  ModelConfig config;
  config.family = Family::kLlama;
  config.model_type = "llama";
  config.vocab_size = 64;
  config.hidden_size = 32;
  config.num_layers = 4;
  config.num_heads = config.num_kv_heads = 2;
  config.head_dim = 16;
  config.intermediate_size = 64;
  config.max_position_embeddings = 64;
  config.activation = Activation::kSilu;
  return BuildModelSpec({config}, 16);
}

// Of three layers alike: the forward is a third of all, or has been kept.
TEST(GradientTimesTest, ABackwardCountsAsTwoForwards) {
  const GradientTimes times(Llama());
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
  const GradientTimes times(Llama());
  GradientStall stall(times, BackwardTask::kKept, {1, 3}, Nanos(1000), Nanos(300));
  stall.FreeAt(3, Nanos(900));
  EXPECT_EQ(stall.total(), Nanos(0));
  stall.FreeAt(2, Nanos(1150));  // it comes there at 1100
  EXPECT_EQ(stall.total(), Nanos(50));
  stall.FreeAt(1, Nanos(1250));  // and here at 1250
  EXPECT_EQ(stall.total(), Nanos(50));
}

}  // namespace
}  // namespace harmony::model
