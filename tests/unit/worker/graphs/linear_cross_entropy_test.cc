#include "worker/graphs/linear_cross_entropy.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/worker/graphs/graph_compute.h"

namespace harmony::worker {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kIgnored = -100;

struct Case {
  at::Tensor x, weight, bias, labels, scale;
};

Case CaseOf(int64_t rows, int64_t width, int64_t classes) {
  const auto of = [](int64_t n, at::IntArrayRef shape) {
    return (at::arange(n, at::kFloat) * 0.37).sin().reshape(shape);
  };
  Case made{of(rows * width, {rows, width}), of(classes * width, {classes, width}),
            of(classes, {classes}), at::arange(rows, at::kLong) * 7 % classes,
            at::full({}, 0.25, at::kFloat)};
  made.labels.slice(0, 1, rows, 3).fill_(kIgnored);
  return made;
}

// Loss and the gradients of x, weight and bias.
absl::StatusOr<Made> Fused(const Case& from, bool with_bias) {
  return Compute(absl::StrCat("x = slot 0\nw = slot 1\nb = slot 2\ny = slot 3\ns = slot 4\n"
                              "l, dx, dw, db = harmony::linear_cross_entropy(%x, %w, ",
                              with_bias ? "%b" : "null", ", %y, ", kIgnored,
                              ", %s)\ngradient 0 = l\ngradient 1 = dx\ngradient 2 = dw\n"
                              "gradient 3 = db"),
                 {from.x, from.weight, from.bias, from.labels, from.scale});
}

// In double precision.
std::vector<at::Tensor> Plain(const Case& from, bool with_bias) {
  const at::Tensor x = from.x.to(at::kDouble), weight = from.weight.to(at::kDouble);
  at::Tensor logits = x.matmul(weight.t());
  if (with_bias) logits = logits + from.bias;
  const at::Tensor counted = from.labels.ne(kIgnored).unsqueeze(1);
  const at::Tensor picked = from.labels.clamp_min(0).unsqueeze(1);
  const at::Tensor logarithms = logits.log_softmax(1);
  at::Tensor gradient = logarithms.exp().scatter_add(
      1, picked, at::full({from.labels.size(0), 1}, -1.0, at::kDouble));
  gradient = gradient * counted * from.scale;
  const at::Tensor loss = -(logarithms.gather(1, picked) * counted).sum();
  return {loss, gradient.matmul(weight), gradient.t().matmul(x), gradient.sum(0)};
}

// Fewer rows than a chunk, several chunks with a rest, and many classes. Rounding grows with the
// root of what is added up: a gradient of an input is a sum over all classes, which products add up
// in an order of their own on each processor.
TEST(LinearCrossEntropyTest, IsWhatItsPartsCompute) {
  const struct {
    int64_t rows, width, classes;
  } sizes[] = {{5, 8, 11}, {2 * LossChunkRows(11) + 3, 4, 11}, {1100, 6, 5000}};
  for (const auto& size : sizes) {
    for (const bool with_bias : {false, true}) {
      SCOPED_TRACE(absl::StrCat(size.rows, " rows, bias ", with_bias));
      const Case from = CaseOf(size.rows, size.width, size.classes);
      const auto made = Fused(from, with_bias);
      ASSERT_TRUE(made.ok()) << made.status();
      const std::vector<at::Tensor> wanted = Plain(from, with_bias);
      const double rounding = 5e-6 + 2e-7 * std::sqrt(static_cast<double>(size.classes));
      for (size_t i = 0; i < (with_bias ? 4 : 3); ++i) {
        EXPECT_EQ(made->at(static_cast<int>(i)).sizes(), wanted[i].sizes());
        const double most = wanted[i].abs().max().item<double>();
        EXPECT_LT((made->at(static_cast<int>(i)) - wanted[i]).abs().max().item<double>(),
                  rounding * most)
            << i;
      }
      EXPECT_EQ(made->at(3).numel(), with_bias ? size.classes : 0);
    }
  }
}

TEST(LinearCrossEntropyTest, ChunksHaveAsManyRowsAsTheExportCounts) {
  // The same numbers as in tests/export/test_fused_loss.py.
  EXPECT_EQ(LossChunkRows(10), 1024);
  EXPECT_EQ(LossChunkRows(50257), 64);
  EXPECT_EQ(LossChunkRows(1000000), 16);
}

TEST(LinearCrossEntropyTest, WhatDoesNotFitIsRefused) {
  const auto error = [](const Case& from, bool with_bias = true) {
    return Fused(from, with_bias).status();
  };
  Case wrong = CaseOf(5, 8, 11);
  wrong.labels[3] = 11;
  EXPECT_EQ(error(wrong).code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(error(wrong).message()), HasSubstr("label 11 at position 3"));
  wrong = CaseOf(5, 8, 11);
  wrong.x = wrong.x.slice(1, 0, 7);
  EXPECT_THAT(std::string(error(wrong).message()), HasSubstr("the weight [11, 8]"));
  wrong = CaseOf(5, 8, 11);
  wrong.bias = wrong.bias.slice(0, 0, 3);
  EXPECT_THAT(std::string(error(wrong).message()), HasSubstr("bias"));
  EXPECT_TRUE(error(wrong, /*with_bias=*/false).ok());
  wrong = CaseOf(5, 8, 11);
  wrong.weight = wrong.weight.slice(0, 0, 0);
  EXPECT_THAT(std::string(error(wrong, /*with_bias=*/false).message()), HasSubstr("[0, 8]"));
  wrong = CaseOf(5, 8, 11);
  wrong.labels = wrong.labels.slice(0, 0, 4);
  EXPECT_THAT(std::string(error(wrong).message()), HasSubstr("labels are"));
}

}  // namespace
}  // namespace harmony::worker
