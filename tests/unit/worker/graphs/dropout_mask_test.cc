#include "worker/graphs/dropout_mask.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "tests/unit/worker/graphs/graph_compute.h"

namespace harmony::worker {
namespace {

using ::testing::HasSubstr;

const at::Tensor& Keys() {
  static const auto* const keys =
      new at::Tensor(at::tensor({int64_t{0x0123456789ABCDEF}, int64_t{-3}, int64_t{0}}, at::kLong));
  return *keys;
}

absl::StatusOr<at::Tensor> Mask(const at::Tensor& keys, const std::string& arguments) {
  const auto made = Compute(
      absl::StrCat("k = slot 0\nm = harmony::dropout_mask(%k, ", arguments, ")\ngradient 0 = m"),
      {keys});
  if (!made.ok()) return made.status();
  return made->at(0);
}

std::string Bits(const at::Tensor& mask, int64_t count) {
  std::string bits;
  for (int64_t i = 0; i < count; ++i) bits += mask.flatten()[i].item<bool>() ? '1' : '0';
  return bits;
}

TEST(DropoutMaskTest, HasTheNumbersThatTheExportHas) {
  const auto mask = Mask(Keys(), "7, 2, [3, 40, 50], 0, 0.3");
  ASSERT_TRUE(mask.ok()) << mask.status();
  EXPECT_EQ(mask->scalar_type(), at::kBool);
  // The same texts as in tests/export/test_noise_and_labels.py.
  EXPECT_EQ(Bits((*mask)[0], 32), "11111001101111101011111011110110");
  EXPECT_EQ(Bits((*mask)[1], 32), "11101110101010101010101110011011");
  EXPECT_NEAR(mask->to(at::kFloat).mean().item<float>(), 0.7, 0.02);
}

TEST(DropoutMaskTest, DependsOnTheSampleTheLayerAndTheCallAlone) {
  const at::Tensor mask = *Mask(Keys(), "7, 2, [3, 40, 50], 0, 0.3");
  const at::Tensor alone = *Mask(Keys().slice(0, 1, 2), "7, 2, [1, 40, 50], 0, 0.3");
  EXPECT_TRUE(at::equal(alone[0], mask[1]));
  EXPECT_FALSE(at::equal(*Mask(Keys(), "8, 2, [3, 40, 50], 0, 0.3"), mask));
  EXPECT_FALSE(at::equal(*Mask(Keys(), "7, 3, [3, 40, 50], 0, 0.3"), mask));
  // Rows of a sample follow each other, whichever dimension counts them.
  EXPECT_TRUE(at::equal(*Mask(Keys(), "7, 2, [40, 3, 50], 1, 0.3"), mask.transpose(0, 1)));
  EXPECT_TRUE(at::equal(*Mask(Keys(), "7, 2, [120, 50], 0, 0.3"), mask.reshape({120, 50})));
}

TEST(DropoutMaskTest, DoesNotDependOnThreads) {
  const std::string large = "1, 0, [3, 100, 777], 0, 0.5";
  const at::Tensor mask = *Mask(Keys(), large);
  const int before = at::get_num_threads();
  at::set_num_threads(before == 1 ? 3 : 1);
  EXPECT_TRUE(at::equal(*Mask(Keys(), large), mask));
  at::set_num_threads(before);
}

// Many elements are drawn at a time where the processor can, the rest one by one.
TEST(DropoutMaskTest, EveryElementIsItsWordOfPhilox) {
  for (const double p : {0.1, 0.5, 0.999999}) {
    const at::Tensor mask = *Mask(Keys(), absl::StrCat("5, 3, [3, 67], 0, ", p));
    const auto threshold = static_cast<uint64_t>(std::nearbyint(p * 0x1.0p32));
    for (int64_t sample = 0; sample < 3; ++sample) {
      const auto key = static_cast<uint64_t>(Keys()[sample].item<int64_t>());
      for (int64_t e = 0; e < 67; ++e) {
        const auto words = Philox4x32(key, static_cast<uint64_t>(e / 4), (uint64_t{5} << 32) | 3);
        ASSERT_EQ(mask[sample][e].item<bool>(), words[static_cast<size_t>(e % 4)] >= threshold)
            << "p " << p << " sample " << sample << " element " << e;
      }
    }
  }
}

TEST(DropoutMaskTest, ZeroKeepsAllAndOneNothing) {
  EXPECT_TRUE(Mask(Keys(), "0, 0, [3, 9], 0, 0.0")->all().item<bool>());
  EXPECT_FALSE(Mask(Keys(), "0, 0, [3, 9], 0, 1.0")->any().item<bool>());
}

TEST(DropoutMaskTest, WhatDoesNotFitIsRefused) {
  const auto error = [](const std::string& arguments) {
    return std::string(Mask(Keys(), arguments).status().message());
  };
  EXPECT_THAT(error("0, 0, [4, 9], 0, 0.5"), HasSubstr("no multiple of 3 samples"));
  EXPECT_THAT(error("0, 0, [3, 9], 2, 0.5"), HasSubstr("no multiple of 3 samples"));
  EXPECT_THAT(error("0, 0, [3, 9], 0, 1.5"), HasSubstr("p is 1.5"));
  EXPECT_THAT(error("-1, 0, [3, 9], 0, 0.5"), HasSubstr("the layer is -1"));
  EXPECT_THAT(std::string(Mask(Keys().to(at::kFloat), "0, 0, [3, 9], 0, 0.5").status().message()),
              HasSubstr("the keys are no int64"));
}

}  // namespace
}  // namespace harmony::worker
