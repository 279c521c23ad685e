#include "worker/graphs/rotary.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/unit/worker/graphs/graph_compute.h"
#include "worker/kernels/cpu_row_kernels.h"

namespace harmony::worker {
namespace {

using ::testing::HasSubstr;

struct Case {
  at::Tensor x, cosines, sines;
  std::vector<int64_t> order;
};

// Heads of `width` numbers, [2, 3, 5, width], beside each other in memory for each of the five
// tokens, and tables of tokens, whose second half is no copy of the first.
Case CaseOf(at::ScalarType type, int64_t width) {
  return {(Ramp({2, 5, 3, width}, 0, 40).sin() * 3).to(type).transpose(1, 2),
          Ramp({5, width}, -2, 7).cos().to(type),
          Ramp({2, 1, 5, width}, 0, 9).sin().to(type),
          {0, 2, 1, 3}};
}

absl::StatusOr<Made> Computed(const Case& from) {
  const std::string arguments = absl::StrCat("%x, %c, %s, [", absl::StrJoin(from.order, ", "), "]");
  return Compute(absl::StrCat("x = slot 0\nc = slot 1\ns = slot 2\ny = harmony::rotary(", arguments,
                              ")\nz = harmony::rotary_backward(", arguments,
                              ")\ngradient 0 = y\ngradient 1 = z"),
                 {from.x, from.cosines, from.sines});
}

// As eager PyTorch and autograd have it.
at::Tensor Right(const Case& from, bool backward) {
  const at::Tensor from_halves = backward ? from.x * from.sines : from.x;
  const int64_t half = from.x.size(-1) / 2;
  const at::Tensor first = from_halves.slice(-1, 0, half), second = from_halves.slice(-1, half);
  const at::Tensor direct = from.x * from.cosines;
  if (!backward) return direct + at::cat({-second, first}, -1) * from.sines;
  const auto whole = [&](const at::Tensor& part, int64_t begin) {
    at::Tensor made = at::zeros_like(from.x);
    made.slice(-1, begin, begin + half).copy_(part);
    return made;
  };
  return whole(second, 0) + whole(-first, half) + direct;
}

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

// Also where a sum is zero, and whichever order the result lies in.
TEST(RotaryTest, IsEagersOnTheCpu) {
  for (const at::ScalarType type : kTypes) {
    for (const std::vector<int64_t>& order : {std::vector<int64_t>{0, 2, 1, 3}, {0, 1, 2, 3}}) {
      Case from = CaseOf(type, 8);
      from.x.select(2, 1).fill_(-0.0);
      from.order = order;
      const auto made = Computed(from);
      ASSERT_TRUE(made.ok()) << made.status();
      for (const bool backward : {false, true}) {
        const at::Tensor& found = made->at(backward ? 1 : 0);
        const at::Tensor right = Right(from, backward);
        EXPECT_TRUE(at::equal(found, right)) << backward;
        EXPECT_TRUE(at::equal(at::signbit(found), at::signbit(right))) << backward;
      }
    }
  }
}

// As on a GPU, where sizes allow reading several numbers at once and where not. One product is
// not rounded by compilers that join it with the sum.
TEST(RotaryTest, IsTheSameByRows) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : {16, 6}) {
      const Case whole = CaseOf(type, width);
      Case turned = whole;
      turned.x = whole.x.permute({3, 0, 1, 2}).contiguous().permute({1, 2, 3, 0});
      turned.cosines = whole.cosines.t().contiguous().t();
      Case apart = whole;  // rows that begin at no multiple of several numbers
      apart.x = at::cat({whole.x, whole.x}, -1)
                    .narrow(-1, 0, width + 1)
                    .contiguous()
                    .narrow(-1, 0, width);
      for (const Case& from : {whole, turned, apart}) {
        for (const std::vector<int64_t>& order : {std::vector<int64_t>{0, 2, 1, 3}, {1, 0, 2, 3}}) {
          const at::Tensor made =
              RotaryByRows(CpuRowKernels(), from.x, from.cosines, from.sines, order);
          const at::Tensor back =
              RotaryBackwardByRows(CpuRowKernels(), from.x, from.cosines, from.sines, order);
          const double bar = type == at::kFloat ? 1e-6 : 0;
          EXPECT_TRUE(at::allclose(made, Right(whole, false), 0, bar));
          EXPECT_TRUE(at::allclose(back, Right(whole, true), 0, bar));
          EXPECT_TRUE(made.permute(order).is_contiguous() && back.permute(order).is_contiguous());
        }
      }
    }
  }
}

TEST(RotaryTest, TensorsOfFewerDimensionsAndNoSamplesAreTurnedByRows) {
  const Case from = CaseOf(at::kFloat, 8);
  const at::Tensor rows = from.x.select(0, 0).select(0, 0);
  const Case fewer{rows, from.cosines, from.cosines, {0, 1}};
  const at::Tensor made =
      RotaryByRows(CpuRowKernels(), fewer.x, fewer.cosines, fewer.sines, fewer.order);
  EXPECT_TRUE(at::allclose(made, Right(fewer, false), 0, 1e-6));
  const at::Tensor none = RotaryByRows(CpuRowKernels(), from.x.slice(0, 0, 0), from.cosines,
                                       from.sines.slice(0, 0, 0), from.order);
  EXPECT_EQ(none.sizes(), at::IntArrayRef({0, 3, 5, 8}));
}

TEST(RotaryErrorsTest, WhatDoesNotFitIsRefused) {
  const auto error_of = [](const Case& from) {
    return std::string(Computed(from).status().message());
  };
  Case wrong = CaseOf(at::kFloat, 7);
  EXPECT_THAT(error_of(wrong), HasSubstr("rows of two halves"));
  const Case good = CaseOf(at::kFloat, 8);
  wrong = good;
  wrong.cosines = good.cosines.slice(0, 0, 4);
  EXPECT_THAT(error_of(wrong), HasSubstr("a table is Float [4, 8]"));
  wrong = good;
  wrong.sines = good.sines.to(at::kBFloat16);
  EXPECT_THAT(error_of(wrong), HasSubstr("a table is BFloat16"));
  for (const std::vector<int64_t>& order :
       {std::vector<int64_t>{0, 1, 2}, {0, 1, 3, 2}, {0, 1, 1, 3}, {-1, 1, 2, 3}}) {
    wrong = good;
    wrong.order = order;
    EXPECT_THAT(error_of(wrong), HasSubstr("is none of the dimensions"))
        << absl::StrJoin(order, " ");
  }
}

}  // namespace
}  // namespace harmony::worker
