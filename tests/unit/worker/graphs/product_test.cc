#include "worker/graphs/product.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/unit/worker/graphs/graph_compute.h"

namespace harmony::worker {
namespace {

using ::testing::HasSubstr;

at::Tensor Matrix(int64_t rows, int64_t columns) {
  return (at::arange(rows * columns, at::kFloat) * 0.37).sin().reshape({rows, columns});
}

// Slots 0 and 1 multiplied, plus slot 2.
absl::StatusOr<Made> Product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias,
                             bool with_bias = true) {
  return Compute(absl::StrCat("a = slot 0\nb = slot 1\nc = slot 2\np = harmony::product(",
                              with_bias ? "%c" : "null", ", %a, %b)\ngradient 0 = p"),
                 {a, b, bias});
}

void ExpectRight(const at::Tensor& a, const at::Tensor& b) {
  SCOPED_TRACE(absl::StrCat(a.size(0), " x ", a.size(1), " x ", b.size(1)));
  const at::Tensor bias = Matrix(1, b.size(1)).squeeze(0);
  for (const bool with_bias : {false, true}) {
    const auto made = Product(a, b, bias, with_bias);
    ASSERT_TRUE(made.ok()) << made.status();
    at::Tensor wanted = a.to(at::kDouble).mm(b.to(at::kDouble));
    if (with_bias) wanted = wanted + bias;
    ASSERT_EQ(made->at(0).sizes(), wanted.sizes());
    EXPECT_TRUE(made->at(0).is_contiguous());
    if (wanted.numel() == 0) continue;
    EXPECT_LT((made->at(0) - wanted).abs().max().item<double>(),
              1e-6 * (1 + static_cast<double>(a.size(1))));
  }
}

TEST(ProductTest, OfMatricesHoweverTheyLieInMemory) {
  ExpectRight(Matrix(5, 7), Matrix(7, 50));
  ExpectRight(Matrix(7, 5).t(), Matrix(50, 7).t());
  ExpectRight(Matrix(64, 300), Matrix(300, 96));
  ExpectRight(Matrix(10, 14).slice(0, 0, 10, 2).slice(1, 0, 14, 2), Matrix(7, 6));  // gaps
  ExpectRight(Matrix(1, 7).expand({5, 7}), Matrix(7, 1).expand({7, 6}));
  ExpectRight(Matrix(1, 7), Matrix(7, 1));
}

TEST(ProductTest, OfNothing) {
  ExpectRight(Matrix(0, 7), Matrix(7, 3));
  ExpectRight(Matrix(2, 0), Matrix(0, 3));
}

TEST(ProductTest, WhatDoesNotFitIsRefused) {
  const at::Tensor bias = Matrix(1, 3).squeeze(0);
  EXPECT_THAT(std::string(Product(Matrix(2, 3), Matrix(4, 3), bias).status().message()),
              HasSubstr("[4, 3]"));
  EXPECT_THAT(std::string(Product(Matrix(2, 4), Matrix(4, 5), bias).status().message()),
              HasSubstr("bias"));
  EXPECT_THAT(
      std::string(Product(Matrix(2, 4), Matrix(4, 3).to(at::kDouble), bias).status().message()),
      HasSubstr("Double"));
}

}  // namespace
}  // namespace harmony::worker
