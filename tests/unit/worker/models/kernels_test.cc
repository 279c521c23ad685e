#include "worker/models/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "common/base/random.h"

namespace harmony::worker::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> Random(int64_t count, double scale) {
  CounterRandom random(count);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>((random.NextDouble() * 2 - 1) * scale);
  return values;
}

TEST(CrossEntropyTest, MatchesTheFormulaInDouble) {
  constexpr int64_t kRows = 3, kVocabulary = 1037;
  const std::vector<float> logits = Random(kRows * kVocabulary, 20.0);
  const std::vector<int32_t> labels = {0, 1036, 500};
  std::vector<float> gradient = logits;
  std::vector<double> loss(kRows);
  CrossEntropy(gradient.data(), labels.data(), kRows, kVocabulary, 0.25f, loss.data());
  for (int64_t i = 0; i < kRows; ++i) {
    const float* row = logits.data() + i * kVocabulary;
    double sum = 0;
    for (int64_t j = 0; j < kVocabulary; ++j) sum += std::exp(static_cast<double>(row[j]));
    EXPECT_NEAR(loss[i], std::log(sum) - row[labels[i]], 1e-5);
    for (int64_t j = 0; j < kVocabulary; ++j) {
      const double share = std::exp(static_cast<double>(row[j])) / sum;
      EXPECT_NEAR(gradient[i * kVocabulary + j], 0.25 * (share - (j == labels[i] ? 1 : 0)), 1e-6);
    }
  }
}

TEST(CrossEntropyTest, NegativeLabelsCountNothing) {
  std::vector<float> logits = Random(40, 1.0);
  const std::vector<int32_t> labels = {-100, 3};
  std::vector<double> loss(2);
  CrossEntropy(logits.data(), labels.data(), 2, 20, 1.0f, loss.data());
  EXPECT_EQ(loss[0], 0);
  EXPECT_GT(loss[1], 0);
  for (int j = 0; j < 20; ++j) EXPECT_EQ(logits[j], 0);
}

TEST(CrossEntropyTest, NonFiniteLogitsGiveANonFiniteLoss) {
  for (const float bad : {kNan, kInfinity}) {
    for (const int64_t at : {0, 7, 36}) {
      std::vector<float> logits = Random(37, 1.0);
      logits[at] = bad;
      const int32_t label = 5;
      double loss = 0;
      CrossEntropy(logits.data(), &label, 1, 37, 1.0f, &loss);
      EXPECT_FALSE(std::isfinite(loss)) << bad << " at " << at;
    }
  }
}

TEST(RotateTest, InverseUndoesIt) {
  constexpr int64_t kSamples = 2, kTokens = 3, kHeads = 2, kHeadDim = 10;
  std::vector<float> cosines, sines;
  for (int i = 0; i < kTokens * kHeadDim / 2; ++i) {
    cosines.push_back(std::cos(0.3f * i));
    sines.push_back(std::sin(0.3f * i));
  }
  const std::vector<float> before = Random(kSamples * kTokens * kHeads * kHeadDim, 1.0);
  std::vector<float> x = before;
  Rotate(x.data(), cosines.data(), sines.data(), kSamples, kTokens, kHeads, kHeadDim, false);
  // Token 1 of sample 0, head 0: element 2 is turned with element 7.
  const int64_t at = kHeads * kHeadDim + 2;
  EXPECT_NEAR(x[at], before[at] * cosines[7] - before[at + 5] * sines[7], 1e-6);
  Rotate(x.data(), cosines.data(), sines.data(), kSamples, kTokens, kHeads, kHeadDim, true);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], before[i], 1e-6);
}

TEST(GatherRowsTest, NamesTheFirstRowOutsideTheTable) {
  const std::vector<float> table = Random(5 * 4, 1.0);
  std::vector<float> out(3 * 4);
  const std::vector<int32_t> good = {4, 0, 4};
  EXPECT_EQ(GatherRows(table.data(), 5, good.data(), 3, 4, out.data()), -1);
  EXPECT_EQ(out[8], table[16]);
  const std::vector<int32_t> bad = {4, 5, -1};
  EXPECT_EQ(GatherRows(table.data(), 5, bad.data(), 3, 4, out.data()), 1);
}

}  // namespace
}  // namespace harmony::worker::kernels
