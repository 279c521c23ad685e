#include "worker/kernels/row_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "worker/kernels/cpu_row_kernels.h"

namespace harmony::worker {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What kernels_check compares with float64 is not repeated here.

TEST(CrossEntropyRowsTest, LogitsThatAreNotFiniteGiveSuchALoss) {
  for (const int64_t classes : {7, 8, 1037, 2048}) {
    for (const float bad : {kNan, kInfinity}) {
      for (const int64_t at : {int64_t{0}, int64_t{3}, classes - 1}) {
        std::vector<float> logits(static_cast<size_t>(classes), 0.5);
        logits[static_cast<size_t>(at)] = bad;
        const int32_t label = 5;
        double loss = 0;
        CpuRowKernels().CrossEntropy({Number::kF32, 1, classes, logits.data(), &label, 1, &loss});
        EXPECT_FALSE(std::isfinite(loss)) << bad << " at " << at << " of " << classes;
      }
    }
  }
}

TEST(CrossEntropyRowsTest, NegativeLabelsCountNothing) {
  std::vector<float> logits(40, 0.5);
  const std::vector<int32_t> labels = {-100, 3};
  std::vector<double> losses(2, 7);
  CpuRowKernels().CrossEntropy(
      {Number::kF32, 2, 20, logits.data(), labels.data(), 1, losses.data()});
  EXPECT_EQ(losses[0], 0);
  EXPECT_NEAR(losses[1], std::log(20.0), 1e-6);
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(logits[i], 0);
  EXPECT_NEAR(logits[23], 1.0 / 20 - 1, 1e-6);
}

TEST(GatedRowsTest, WhatIsNoNumberStaysSo) {
  for (const Gate by : {Gate::kSilu, Gate::kRelu, Gate::kGelu, Gate::kGeluTanh}) {
    const std::vector<float> gate = {kNan, 1, -1}, up = {1, 1, 1};
    std::vector<float> out(3), of_gate = {1, 1, 1}, of_up(3);
    const GatedRows rows{Number::kF32, by, 1, 3, gate.data(), up.data()};
    CpuRowKernels().Gated(rows, out.data());
    CpuRowKernels().GatedBackward(rows, of_gate.data(), of_gate.data(), of_up.data());
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(of_up[0]));
    EXPECT_EQ(std::isnan(of_gate[0]), by != Gate::kRelu);  // as LibTorch's, of which it is no part
    EXPECT_TRUE(std::isfinite(out[2]) && std::isfinite(of_gate[2]) && std::isfinite(of_up[2]));
  }
}

TEST(RowPartsTest, PartsHaveAllRowsAndTheirSumsFitTheScratch) {
  for (const int64_t width : {1, 96, 4096, 200'000, 5'000'000}) {
    for (const int64_t rows : {0, 1, 255, 4096, 1'000'003}) {
      const RowParts parts(rows, width);
      EXPECT_GE(parts.parts * parts.rows_each, rows);
      EXPECT_LT((parts.parts - 1) * parts.rows_each, std::max<int64_t>(rows, 1));
      EXPECT_LE(parts.parts * width, std::max(RowParts::kMostNumbers, width));
    }
  }
}

}  // namespace
}  // namespace harmony::worker
