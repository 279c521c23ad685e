#include "worker/graphs/norms.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/worker/graphs/graph_compute.h"
#include "worker/graphs/norms_by_rows.h"
#include "worker/kernels/cpu_row_kernels.h"

namespace harmony::worker {
namespace {

using ::testing::HasSubstr;

struct Case {
  const char* name;
  at::ScalarType input;
  std::optional<at::ScalarType> parameters;
};

void PrintTo(const Case& from, std::ostream* out) { *out << from.name; }

void ExpectTheSame(const Made& made, const std::vector<at::Tensor>& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    const at::Tensor& found = made.at(static_cast<int>(i));
    EXPECT_EQ(found.scalar_type(), wanted[i].scalar_type()) << i;
    EXPECT_TRUE(at::equal(found, wanted[i])) << i;
  }
}

class LayerNormTest : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(, LayerNormTest,
                         ::testing::Values(Case{"Narrow", at::kBFloat16, at::kBFloat16},
                                           Case{"Mixed", at::kBFloat16, at::kFloat},
                                           Case{"WithoutParameters", at::kBFloat16, std::nullopt},
                                           Case{"Wide", at::kFloat, at::kFloat}),
                         [](const auto& info) { return info.param.name; });

// To the last bit, though statistics are fp32 in between.
TEST_P(LayerNormTest, IsEagersOnTheCpu) {
  const Case& from = GetParam();
  const at::Tensor x = (Ramp({3, 5, 8}, 0, 40).sin() + 0.3).to(from.input);
  const at::Tensor gradient = Ramp({3, 5, 8}, -3, 50).cos().to(from.input);
  std::optional<at::Tensor> weight, bias;
  if (from.parameters.has_value()) {
    weight = Ramp({8}, 0.5, 1.5).to(*from.parameters);
    bias = Ramp({8}, -0.2, 0.3).to(*from.parameters);
  }
  const auto made = Compute(
      weight.has_value()
          ? "x = slot 0\nw = slot 1\nb = slot 2\ng = slot 3\n"
            "y, m, r = harmony::layer_norm(%x, [8], %w, %b, 0.00001)\n"
            "dx, dw, db = harmony::layer_norm_backward(%g, %x, [8], %m, %r, %w, %b, [true, true, "
            "true])\ngradient 0 = y\ngradient 1 = m\ngradient 2 = r\ngradient 3 = dx\n"
            "gradient 4 = dw\ngradient 5 = db"
          : "x = slot 0\ng = slot 3\n"
            "y, m, r = harmony::layer_norm(%x, [8], null, null, 0.00001)\n"
            "dx, dw, db = harmony::layer_norm_backward(%g, %x, [8], %m, %r, null, null, [true, "
            "false, false])\ngradient 0 = y\ngradient 1 = m\ngradient 2 = r\ngradient 3 = dx",
      {x, weight.value_or(at::zeros({1})), bias.value_or(at::zeros({1})), gradient});
  ASSERT_TRUE(made.ok()) << made.status();
  const auto [y, mean, deviation] = at::native_layer_norm(x, {8}, weight, bias, 0.00001);
  const bool has = weight.has_value();
  const auto [dx, dweight, dbias] = at::native_layer_norm_backward(
      gradient, x, {8}, mean, deviation, weight, bias, {true, has, has});
  std::vector<at::Tensor> wanted = {y, mean.to(at::kFloat), deviation.to(at::kFloat), dx};
  if (has) wanted.insert(wanted.end(), {dweight, dbias});
  ExpectTheSame(*made, wanted);
}

// An input narrower than its parameters.
TEST(GroupNormTest, IsEagersOnTheCpu) {
  const at::Tensor x = (Ramp({3, 4, 6}, 0, 40).sin() + 0.3).to(at::kBFloat16);
  const at::Tensor gradient = Ramp({3, 4, 6}, -3, 50).cos().to(at::kBFloat16);
  const at::Tensor weight = Ramp({4}, 0.5, 1.5), bias = Ramp({4}, -0.2, 0.3);
  const auto made = Compute(
      "x = slot 0\nw = slot 1\nb = slot 2\ng = slot 3\n"
      "y, m, r = harmony::group_norm(%x, %w, %b, 3, 4, 6, 2, 0.00001)\n"
      "dx, dw, db = harmony::group_norm_backward(%g, %x, %m, %r, %w, 3, 4, 6, 2, [true, true, "
      "true])\ngradient 0 = y\ngradient 1 = m\ngradient 2 = r\ngradient 3 = dx\n"
      "gradient 4 = dw\ngradient 5 = db",
      {x, weight, bias, gradient});
  ASSERT_TRUE(made.ok()) << made.status();
  const auto [y, mean, deviation] = at::native_group_norm(x, weight, bias, 3, 4, 6, 2, 0.00001);
  const auto [dx, dweight, dbias] = at::native_group_norm_backward(
      gradient, x, mean, deviation, weight, 3, 4, 6, 2, {true, true, true});
  const std::vector<at::Tensor> wanted = {y, mean, deviation, dx, dweight, dbias};
  ExpectTheSame(*made, wanted);
}

class BatchNormTest : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(, BatchNormTest,
                         ::testing::Values(Case{"Narrow", at::kBFloat16, at::kBFloat16},
                                           Case{"WithoutParameters", at::kBFloat16, std::nullopt}),
                         [](const auto& info) { return info.param.name; });

// Of the batch's statistics, as instance norms are, too.
TEST_P(BatchNormTest, IsEagersOnTheCpu) {
  const Case& from = GetParam();
  const at::Tensor x = (Ramp({3, 4, 6}, 0, 40).sin() + 0.3).to(from.input);
  const at::Tensor gradient = Ramp({3, 4, 6}, -3, 50).cos().to(from.input);
  std::optional<at::Tensor> weight, bias;
  if (from.parameters.has_value()) {
    weight = Ramp({4}, 0.5, 1.5).to(*from.parameters);
    bias = Ramp({4}, -0.2, 0.3).to(*from.parameters);
  }
  const bool has = weight.has_value();
  const std::string given = has ? "%w, %b" : "null, null", of_weight = has ? "%w" : "null";
  const std::string wanted_of_it = has ? "[true, true, true]" : "[true, false, false]";
  const auto made =
      Compute(absl::StrCat(has ? "w = slot 1\nb = slot 2\n" : "", "x = slot 0\ng = slot 3\n",
                           "y, m, r = harmony::batch_norm(%x, ", given, ", true, 0.1, 0.00001)\n",
                           "dx, dw, db = harmony::batch_norm_backward(%g, %x, ", of_weight,
                           ", null, null, %m, %r, true, 0.00001, ", wanted_of_it, ")\n",
                           "gradient 0 = y\ngradient 1 = m\ngradient 2 = r\ngradient 3 = dx",
                           has ? "\ngradient 4 = dw\ngradient 5 = db" : ""),
              {x, weight.value_or(at::zeros({1})), bias.value_or(at::zeros({1})), gradient});
  ASSERT_TRUE(made.ok()) << made.status();
  const auto [y, mean, deviation] =
      at::_native_batch_norm_legit(x, weight, bias, true, 0.1, 0.00001);
  const auto [dx, dweight, dbias] = at::native_batch_norm_backward(
      gradient, x, weight, {}, {}, mean, deviation, true, 0.00001, {true, has, has});
  std::vector<at::Tensor> wanted = {y, mean.to(at::kFloat), deviation.to(at::kFloat), dx};
  if (has) wanted.insert(wanted.end(), {dweight, dbias});
  ExpectTheSame(*made, wanted);
}

// ---- RMS norms ----

at::Tensor Other(const at::Tensor& like) {
  return (at::arange(like.numel(), at::kFloat) * 0.7)
      .cos()
      .view(like.sizes())
      .to(like.scalar_type());
}

// Of the rows, and of the weight.
using Types = std::pair<at::ScalarType, at::ScalarType>;
class RmsNormTest : public ::testing::TestWithParam<Types> {};

INSTANTIATE_TEST_SUITE_P(, RmsNormTest,
                         ::testing::Values(Types(at::kBFloat16, at::kBFloat16),
                                           Types(at::kBFloat16, at::kFloat),
                                           Types(at::kFloat, at::kFloat)),
                         [](const auto& info) {
                           return absl::StrCat(toString(info.param.first), "By",
                                               toString(info.param.second));
                         });

// The operations that autograd has of such a norm, in their order, of a gradient in either order in
// memory.
TEST_P(RmsNormTest, IsEagersOnTheCpu) {
  const auto [type, kind] = GetParam();
  const at::Tensor x = (Ramp({3, 5, 8}, 0, 40).sin() + 0.3).to(type);
  const at::Tensor straight = Ramp({3, 5, 8}, -3, 50).cos().to(type);
  const at::Tensor weight = Ramp({8}, 0.5, 1.5).to(kind), other = Other(x);
  for (const at::Tensor& gradient :
       {straight, straight.transpose(0, 1).contiguous().transpose(0, 1)}) {
    SCOPED_TRACE(gradient.strides());
    const auto made = Compute(
        "x = slot 0\nw = slot 1\ng = slot 2\no = slot 3\n"
        "y, r = harmony::rms_norm(%x, %w, 0.00001)\n"
        "dx, dw = harmony::rms_norm_backward(%g, %x, %w, %r, null)\n"
        "more, same = harmony::rms_norm_backward(%g, %x, %w, %r, %o)\n"
        "gradient 0 = y\ngradient 1 = r\ngradient 2 = dx\ngradient 3 = dw\n"
        "gradient 4 = more\ngradient 5 = same",
        {x, weight, gradient, other});
    ASSERT_TRUE(made.ok()) << made.status();
    const at::Tensor wide = x.to(at::kFloat), of_output = gradient.to(kind);
    const at::Tensor rstd = (wide.pow(2).mean(-1, true) + 0.00001).rsqrt();
    const at::Tensor normed = (wide * rstd).to(kind);
    const at::Tensor of_weight = (of_output * normed).sum(at::IntArrayRef{0, 1}, true).view({8});
    const at::Tensor along = (of_output * weight).to(at::kFloat);
    const at::Tensor of_squares = (along * wide).sum(-1, true) * -0.5 * rstd.pow(3);
    const at::Tensor through = of_squares.expand_as(wide) / 8 * (wide.pow(1.0) * 2.0);
    ExpectTheSame(*made, {(weight * normed).to(type), rstd, (along * rstd + through).to(type),
                          of_weight, (other + along * rstd + through).to(type), of_weight});
    EXPECT_TRUE(made->at(2).is_contiguous() && made->at(4).is_contiguous());
  }
}

TEST(RmsNormErrorsTest, WhatDoesNotFitIsRefused) {
  const at::Tensor x = Ramp({3, 8}, 0, 1);
  const auto error = [&](const char* what, const at::Tensor& weight, const at::Tensor& rstd) {
    const auto made = Compute(what, {x, weight, rstd});
    return made.ok() ? "" : std::string(made.status().message());
  };
  const char* const forward =
      "x = slot 0\nw = slot 1\ny, r = harmony::rms_norm(%x, %w, 0.1)\n"
      "gradient 0 = y";
  EXPECT_EQ(error(forward, Ramp({8}, 0, 1), x), "");
  EXPECT_THAT(error(forward, Ramp({7}, 0, 1), x), HasSubstr("[3, 8], a weight of Float [7]"));
  EXPECT_THAT(error(forward, Ramp({8}, 0, 1).to(at::kBFloat16), x), HasSubstr("BFloat16 [8]"));
  const char* const backward =
      "x = slot 0\nw = slot 1\nr = slot 2\n"
      "dx, dw = harmony::rms_norm_backward(%x, %x, %w, %r, null)\n"
      "gradient 0 = dx";
  EXPECT_EQ(error(backward, Ramp({8}, 0, 1), Ramp({3, 1}, 1, 2)), "");
  EXPECT_THAT(error(backward, Ramp({8}, 0, 1), Ramp({2, 1}, 1, 2)), HasSubstr("rows are Float"));
}

// ---- By row kernels, as on a GPU ----

double Apart(const at::Tensor& found, const at::Tensor& right) {
  const at::Tensor wide = right.to(at::kDouble);
  return ((found.to(at::kDouble) - wide).abs().max() / wide.abs().max()).item<double>();
}

// As near what the CPU computes as rounding lets them be.
TEST(NormsByRowsTest, AreAsOnTheCpu) {
  const RowKernels& kernels = CpuRowKernels();
  for (const int64_t width : {8, 7}) {
    for (const auto& [type, parameters] :
         {std::pair(at::kFloat, at::kFloat), std::pair(at::kBFloat16, at::kBFloat16),
          std::pair(at::kBFloat16, at::kFloat)}) {
      SCOPED_TRACE(absl::StrCat(width, " ", toString(type), " ", toString(parameters)));
      const double bar = type == at::kFloat ? 1e-5 : 0.02;
      const at::Tensor x = (Ramp({3, 5, width}, 0, 40).sin() + 0.3).to(type);
      // Of another order in memory, which row kernels do not take.
      const at::Tensor turned = x.transpose(0, 1).contiguous().transpose(0, 1);
      const at::Tensor gradient = Ramp({3, 5, width}, -3, 50).cos().to(type);
      const at::Tensor weight = Ramp({width}, 0.5, 1.5).to(parameters);
      const at::Tensor bias = Ramp({width}, -0.2, 0.3).to(parameters);
      const auto [y, mean, rstd] = LayerNormByRows(kernels, turned, {width}, weight, bias, 1e-5);
      const auto [dx, dw, db] = LayerNormBackwardByRows(kernels, gradient, turned, {width}, mean,
                                                        rstd, weight, bias, {true, true, true});
      const auto [ry, rmean, rrstd] = at::native_layer_norm(x, {width}, weight, bias, 1e-5);
      const auto [rdx, rdw, rdb] = at::native_layer_norm_backward(
          gradient, x, {width}, rmean, rrstd, weight, bias, {true, true, true});
      for (const auto& [found, right] : {std::pair(y, ry), std::pair(mean, rmean.to(at::kFloat)),
                                         std::pair(rstd, rrstd.to(at::kFloat)), std::pair(dx, rdx),
                                         std::pair(dw, rdw), std::pair(db, rdb)}) {
        EXPECT_EQ(found.scalar_type(), right.scalar_type());
        EXPECT_EQ(found.sizes(), right.sizes());
        EXPECT_LT(Apart(found, right), bar);
      }
      EXPECT_TRUE(IsOfRows(x, weight, bias, gradient));
      EXPECT_FALSE(IsOfRows(x.to(at::kHalf), weight, bias) ||
                   IsOfRows(x, weight, bias.to(at::kHalf)) ||
                   IsOfRows(x, weight, bias, gradient.to(at::kHalf)));
      const auto only = LayerNormBackwardByRows(kernels, gradient, turned, {width}, mean, rstd,
                                                weight, bias, {true, false, false});
      EXPECT_TRUE(at::equal(std::get<0>(only), dx));
      EXPECT_FALSE(std::get<1>(only).defined() || std::get<2>(only).defined());
      const auto [z, number] = RmsNormByRows(kernels, turned, weight, 1e-5);
      const auto [dz, dv] =
          RmsNormBackwardByRows(kernels, gradient, turned, weight, number, Other(x));
      const auto made = Compute(
          "x = slot 0\nw = slot 1\ng = slot 2\no = slot 3\n"
          "y, r = harmony::rms_norm(%x, %w, 0.00001)\n"
          "dx, dw = harmony::rms_norm_backward(%g, %x, %w, %r, %o)\n"
          "gradient 0 = y\ngradient 1 = r\ngradient 2 = dx\n"
          "gradient 3 = dw",
          {x, weight, gradient, Other(x)});
      ASSERT_TRUE(made.ok()) << made.status();
      int i = 0;
      for (const at::Tensor& found : {z, number, dz, dv}) {
        const at::Tensor& right = made->at(i++);
        EXPECT_EQ(found.scalar_type(), right.scalar_type());
        EXPECT_EQ(found.sizes(), right.sizes());
        EXPECT_LT(Apart(found, right), bar);
      }
    }
  }
}

}  // namespace
}  // namespace harmony::worker
