#include "worker/graphs/gated.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/unit/worker/graphs/graph_compute.h"
#include "worker/kernels/cpu_row_kernels.h"

namespace harmony::worker {
namespace {

using ::testing::HasSubstr;

struct Case {
  at::Tensor gate, up, gradient;
};

Case CaseOf(at::ScalarType type, int64_t width) {
  return {(Ramp({3, 5, width}, 0, 40).sin() * 3).to(type), Ramp({3, 5, width}, -2, 2).to(type),
          Ramp({3, 5, width}, -3, 50).cos().to(type)};
}

absl::StatusOr<Made> Computed(const Case& from, const std::string& activation) {
  const std::string by = absl::StrCat("{\"text\": \"", activation, "\"}");
  return Compute(absl::StrCat("a = slot 0\nu = slot 1\ng = slot 2\ny = harmony::gated(%a, %u, ", by,
                              ")\nda, du = harmony::gated_backward(%g, %a, %u, ", by,
                              ")\ngradient 0 = y\ngradient 1 = da\ngradient 2 = du"),
                 {from.gate, from.up, from.gradient});
}

class GatedTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(, GatedTest, ::testing::Values("silu", "gelu", "gelu_tanh"),
                         [](const auto& info) { return info.param; });

// The operations that autograd has, to the last bit.
TEST_P(GatedTest, IsEagersOnTheCpu) {
  const std::string activation = GetParam();
  const char* const name = activation == "gelu_tanh" ? "tanh" : "none";
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Case from = CaseOf(type, 8);
    const auto made = Computed(from, activation);
    ASSERT_TRUE(made.ok()) << made.status();
    const bool silu = activation == "silu";
    const at::Tensor activated = silu ? at::silu(from.gate) : at::gelu(from.gate, name);
    const at::Tensor through = from.gradient * from.up;
    EXPECT_TRUE(at::equal(made->at(0), activated * from.up));
    EXPECT_TRUE(at::equal(made->at(1), silu ? at::silu_backward(through, from.gate)
                                            : at::gelu_backward(through, from.gate, name)));
    EXPECT_TRUE(at::equal(made->at(2), from.gradient * activated));
  }
}

// As on a GPU: as near as rounding lets it be.
TEST_P(GatedTest, IsTheSameByRows) {
  const RowKernels& kernels = CpuRowKernels();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t width : {8, 7}) {
      const Case from = CaseOf(type, width);
      const auto made = Computed(from, GetParam());
      ASSERT_TRUE(made.ok()) << made.status();
      const at::Tensor turned = from.gate.transpose(0, 1).contiguous().transpose(0, 1);
      const at::Tensor y = GatedByRows(kernels, turned, from.up, GetParam());
      const auto [of_gate, of_up] =
          GatedBackwardByRows(kernels, from.gradient, turned, from.up, GetParam());
      int i = 0;
      for (const at::Tensor& found : {y, of_gate, of_up}) {
        const at::Tensor right = made->at(i++).to(at::kDouble);
        EXPECT_EQ(found.scalar_type(), type);
        EXPECT_LT((found.to(at::kDouble) - right).abs().max().item<double>(),
                  right.abs().max().item<double>() * (type == at::kFloat ? 1e-6 : 0.01))
            << i << " of width " << width;
      }
    }
  }
}

// As where one projection makes both factors; rows begin at a multiple of several numbers or not.
TEST_P(GatedTest, HalvesOfOneTensorAreTakenWhereTheyLie) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t gap : {0, 1}) {
      const Case from = CaseOf(type, 16);
      const at::Tensor both = at::cat({from.gate, from.up, from.up.narrow(-1, 0, gap)}, -1);
      Case halves = from;
      halves.gate = both.narrow(-1, 0, 16);
      halves.up = both.narrow(-1, 16, 16);
      const auto of = [](const Case& factors) {
        return GatedBackwardByRows(CpuRowKernels(), factors.gradient, factors.gate, factors.up,
                                   GetParam());
      };
      EXPECT_TRUE(at::equal(GatedByRows(CpuRowKernels(), halves.gate, halves.up, GetParam()),
                            GatedByRows(CpuRowKernels(), from.gate, from.up, GetParam())));
      EXPECT_TRUE(at::equal(std::get<0>(of(halves)), std::get<0>(of(from))));
      EXPECT_TRUE(at::equal(std::get<1>(of(halves)), std::get<1>(of(from))));
      const auto computed = Computed(halves, GetParam()), right = Computed(from, GetParam());
      ASSERT_TRUE(computed.ok() && right.ok()) << computed.status();
      for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(computed->at(i).is_contiguous());
        EXPECT_TRUE(at::allclose(computed->at(i), right->at(i), 0.01, 1e-5)) << i;
      }
    }
  }
}

TEST(GatedErrorsTest, WhatDoesNotFitIsRefused) {
  const Case good = CaseOf(at::kFloat, 8);
  Case wrong = good;
  wrong.up = good.up.slice(2, 0, 4);
  EXPECT_THAT(std::string(Computed(wrong, "silu").status().message()), HasSubstr("[3, 5, 4]"));
  EXPECT_THAT(std::string(Computed(good, "selu").status().message()),
              HasSubstr("'selu' is not silu, gelu or gelu_tanh"));
}

}  // namespace
}  // namespace harmony::worker
