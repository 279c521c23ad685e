#include "worker/graphs/norms.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/worker/graphs/graph_compute.h"

namespace harmony::worker {
namespace {

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

}  // namespace
}  // namespace harmony::worker
