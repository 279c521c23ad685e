#include "worker/graphs/graph.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/common/graphs/graph_text.h"
#include "tests/unit/worker/graphs/graph_compute.h"
#include "worker/device/cpu_device.h"
#include "worker/graphs/tensors.h"

namespace harmony::worker {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kFloat = sizeof(float);

// ---- Operations, against ATen called directly ----

TEST(GraphTest, ComputesALinearLayerItsLossAndGradients) {
  const at::Tensor x = Ramp({4, 3}), w = Ramp({5, 3}, 0.2, 1.1), b = Ramp({5}), y = Ramp({4, 5});
  const auto made = Compute(R"(
      x = slot 0
      w = slot 1
      b = slot 2
      y = slot 3
      t = aten::t(%w)
      h = aten::addmm(%b, %x, %t, 1, 1)
      r = aten::relu(%h)
      e = aten::sub.Tensor(%r, %y, 1)
      s = aten::pow.Tensor_Scalar(%e, 2)
      l = aten::mean(%s, null)
      d = aten::mul.Tensor(%e, 0.1)
      dr = aten::threshold_backward(%d, %r, 0)
      db = aten::sum.dim_IntList(%dr, [0], false, null)
      drt = aten::t(%dr)
      dw = aten::mm(%drt, %x)
      dx = aten::mm(%dr, %w)
      loss 0 = l
      gradient 0 = dx
      gradient 1 = dw
      gradient 2 = db
      gradient 3 = l)",
                            {x, w, b, y});
  ASSERT_TRUE(made.ok()) << made.status();
  const at::Tensor h = at::addmm(b, x, w.t()), r = at::relu(h);
  const at::Tensor dr = (r - y) * 0.1 * (r > 0);
  EXPECT_TRUE(at::equal(made->at(0), dr.mm(w)));
  EXPECT_TRUE(at::equal(made->at(1), dr.t().mm(x)));
  EXPECT_TRUE(at::equal(made->at(2), dr.sum({0})));
  EXPECT_NEAR(made->at(3).item<float>(), at::mse_loss(r, y).item<float>(), 1e-6);
}

TEST(GraphTest, PassesListsAndOptionals) {
  const at::Tensor x = Ramp({4, 6});
  const at::Tensor rows = at::tensor({3, 0}, at::kLong);
  const auto made = Compute(R"(
      x = slot 0
      rows = slot 1
      [a, b, c] = aten::split.Tensor(%x, 2, 1)
      joined = aten::cat([%c, %a], 1)
      picked = aten::index.Tensor(%x, [null, %rows])
      padded = aten::constant_pad_nd(%x, [1, 0], -3.5)
      image = aten::view(%x, [1, 1, 4, 6])
      large = aten::upsample_nearest2d.vec(%image, null, [2.0, 2.0])
      small = aten::avg_pool2d(%image, 2, [2, 2], 0, false, true, null)
      smooth = aten::gelu(%x, {"text": "tanh"})
      copy = aten::clone(%image, {"memory_format": "channels_last"})
      gradient 0 = joined
      gradient 1 = picked
      gradient 2 = padded
      gradient 3 = large
      gradient 4 = small
      gradient 5 = smooth
      gradient 6 = copy)",
                            {x, rows});
  ASSERT_TRUE(made.ok()) << made.status();
  const at::Tensor image = x.view({1, 1, 4, 6});
  EXPECT_TRUE(at::equal(made->at(0), at::cat({x.slice(1, 4, 6), x.slice(1, 0, 2)}, 1)));
  EXPECT_TRUE(at::equal(made->at(1), x.index_select(1, rows)));
  EXPECT_TRUE(at::equal(made->at(2), at::constant_pad_nd(x, {1, 0}, -3.5)));
  EXPECT_EQ(made->at(3).sizes(), at::IntArrayRef({1, 1, 8, 12}));
  EXPECT_TRUE(at::equal(made->at(4), at::avg_pool2d(image, {2, 2})));
  EXPECT_TRUE(at::equal(made->at(5), at::gelu(x, "tanh")));
  EXPECT_TRUE(made->at(6).is_contiguous(at::MemoryFormat::ChannelsLast));
}

// As Python's, a number where a tensor is due has no say in the result's type unless it is of a
// higher kind.
TEST(GraphTest, WrapsNumbers) {
  const at::Tensor x = Ramp({4, 6}), i = at::arange(5, at::kInt);
  const auto made = Compute(R"(
      x = slot 0
      i = slot 1
      n = samples 0
      a = aten::mul.Tensor(%x, 2.5)
      b = aten::mul.Tensor(%i, 3)
      c = aten::mul.Tensor(%i, %n)
      d = aten::mul.Tensor(%i, 0.5)
      e = aten::bitwise_and.Tensor(%i, true)
      f = aten::add.Tensor(%x, %x, %n)
      g, _, _ = aten::native_layer_norm(%x, [6], null, null, %n)
      gradient 0 = a
      gradient 1 = b
      gradient 2 = c
      gradient 3 = d
      gradient 4 = e
      gradient 5 = f
      gradient 6 = g)",
                            {x, i, int64_t{7}});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(at::equal(made->at(0), x * 2.5));
  EXPECT_EQ(made->at(1).scalar_type(), at::kInt);
  EXPECT_TRUE(at::equal(made->at(1), i * 3));
  EXPECT_EQ(made->at(2).scalar_type(), at::kInt);
  EXPECT_TRUE(at::equal(made->at(2), i * 7));
  EXPECT_TRUE(at::equal(made->at(3), i * 0.5));
  EXPECT_EQ(made->at(3).scalar_type(), at::kFloat);
  EXPECT_EQ(made->at(4).scalar_type(), at::kInt);
  EXPECT_TRUE(at::equal(made->at(5), at::add(x, x, 7)));
  EXPECT_TRUE(at::equal(made->at(6), at::layer_norm(x, {6}, {}, {}, 7.0)));
}

TEST(GraphTest, ComputesShapes) {
  const auto made = Compute(R"(
      x = slot 0
      n = samples 0
      rows = sym::size(%x, 0)
      stride = sym::stride(%x, 0)
      all = sym::numel(%x)
      sum = sym::add(%rows, %n)
      less = sym::sub(%rows, %all)
      down = sym::floordiv(%less, 7)
      rest = sym::mod(%less, 7)
      back = sym::neg(%down)
      most = sym::max(%back, %stride)
      least = sym::min(%rest, 3)
      twice = sym::mul(%most, 2)
      shape = aten::zeros([%sum, %most, %least, %twice], float32, null, cpu, null)
      flat = aten::view(%x, [%all])
      gradient 0 = shape
      gradient 1 = flat)",
                            {Ramp({4, 5}), int64_t{2}});
  ASSERT_TRUE(made.ok()) << made.status();
  // less is -16, down -3, rest 5.
  EXPECT_EQ(made->at(0).sizes(), at::IntArrayRef({6, 5, 3, 10}));
  EXPECT_EQ(made->at(1).sizes(), at::IntArrayRef({20}));
}

TEST(GraphTest, ResultsMayBeUndefined) {
  const char kLines[] = R"(
      x = slot 0
      y, mean, rstd = aten::native_layer_norm(%x, [6], null, null, 1e-5)
      dx, dw, _ = aten::native_layer_norm_backward(%x, %x, [6], %mean, %rstd, null, null, [true, false, false])
      z, _, _ = aten::native_layer_norm(%x, [6], %dw, null, 1e-5)
      gradient 0 = dw
      gradient 1 = z)";
  const auto made = Compute(absl::StrReplaceAll(kLines, {{"1e-5", "0.00001"}}), {Ramp({4, 6})});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_FALSE(made->at(0).defined());
  EXPECT_TRUE(at::equal(made->at(1), at::layer_norm(Ramp({4, 6}), {6})));

  const auto used = Compute(
      absl::StrReplaceAll(kLines, {{"1e-5", "0.00001"},
                                   {"gradient 0 = dw", "r = aten::relu(%dw)\ngradient 0 = r"}}),
      {Ramp({4, 6})});
  EXPECT_THAT(std::string(used.status().message()), HasSubstr("ops[3]: aten::relu: "));
}

TEST(GraphTest, RunsOnlyWhatIsNeeded) {
  // The operations whose results nobody needs would fail.
  const auto made = Compute(R"(
      x = slot 0
      unused = slot 1
      a = aten::view(%x, [7])
      b = sym::floordiv(1, 0)
      c = aten::relu(%x)
      gradient 0 = c)",
                            {Ramp({4, 6})});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(at::equal(made->at(0), at::relu(Ramp({4, 6}))));
}

TEST(GraphTest, InputsMayBeOutputs) {
  const auto made = Compute(R"(
      x = slot 0
      y = slot 1
      z = aten::relu(%x)
      gradient 0 = x
      gradient 1 = x
      gradient 2 = z
      gradient 3 = y)",
                            {Ramp({4}), Ramp({5})});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(at::equal(made->at(0), Ramp({4})));
  EXPECT_TRUE(at::equal(made->at(1), Ramp({4})));
  EXPECT_TRUE(at::equal(made->at(3), Ramp({5})));
}

TEST(GraphTest, AttentionWithoutDropoutDrawsNothing) {
  const at::Tensor q = Ramp({2, 2, 4, 8});
  const auto made = Compute(R"(
      q = slot 0
      y, _ = aten::_scaled_dot_product_flash_attention_for_cpu(%q, %q, %q, 0.0, true, null, null)
      gradient 0 = y)",
                            {q});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->at(0).sizes(), q.sizes());
}

// ---- Memory ----

class GraphMemoryTest : public ::testing::Test {
 protected:
  static constexpr int64_t kMiB = int64_t{1} << 20;

  GraphMemoryTest() : device_(*CpuDevice::Create({.workspace = MiB(16)})) {}

  // A tensor of one MiB in the workspace.
  static at::Tensor Large() { return at::zeros({kMiB / kFloat}, at::kFloat); }

  // In MiB, from the time before the inputs are made.
  int64_t PeakOf(const std::string& lines, int inputs) {
    const auto graph = BindLines(lines);
    EXPECT_TRUE(graph.ok()) << graph.status();
    std::vector<c10::IValue> values;
    for (int i = 0; i < inputs; ++i) values.push_back(Large());
    const absl::Status status =
        graph->Run(std::move(values), [](const graphs::PhaseOutput&, const at::Tensor&) {});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(device_->usage().current, Bytes());
    return device_->usage().peak.count() / kMiB;
  }

  std::unique_ptr<CpuDevice> device_;
};

TEST_F(GraphMemoryTest, AValueIsFreedWithItsLastUse) {
  // The input goes with the first operation, so that two are alive at a time.
  EXPECT_EQ(PeakOf(R"(
      x = slot 0
      a = aten::relu(%x)
      b = aten::relu(%a)
      c = aten::relu(%b)
      d = aten::relu(%c)
      gradient 0 = d)",
                   1),
            2);
}

TEST_F(GraphMemoryTest, AViewHoldsWhatItIsOf) {
  EXPECT_EQ(PeakOf(R"(
      x = slot 0
      a = aten::relu(%x)
      v = aten::view(%a, [-1, 4])
      b = aten::relu(%x)
      c = aten::relu(%v)
      d = aten::relu(%b)
      gradient 0 = d
      gradient 1 = c)",
                   1),
            3);
}

TEST_F(GraphMemoryTest, AnOutputIsGivenUpAtOnce) {
  EXPECT_EQ(PeakOf(R"(
      x = slot 0
      a = aten::relu(%x)
      b = aten::relu(%x)
      c = aten::relu(%x)
      gradient 0 = a
      gradient 1 = b
      gradient 2 = c)",
                   1),
            2);
}

TEST_F(GraphMemoryTest, WhatNobodyNeedsIsFreedAtOnce) {
  EXPECT_EQ(PeakOf(R"(
      unused = slot 1
      x = slot 0
      top, bottom = aten::aminmax(%x, null, false)
      a, mask = aten::max.dim(%x, 0, false)
      b = aten::relu(%x)
      c = aten::relu(%b)
      gradient 0 = c
      gradient 1 = a)",
                   1),
            2);
}

TEST_F(GraphMemoryTest, ConstantsLieOutside) {
  const auto graph = BindLines(R"(
      x = slot 0
      a = aten::mul.Tensor(%x, 2.5)
      b = aten::add.Tensor(%a, 3, 1)
      gradient 0 = b)");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(device_->usage().current, Bytes());
}

TEST_F(GraphMemoryTest, TooLittleIsNamedWithThePlace) {
  const auto made = Compute(R"(
      x = slot 0
      a = aten::relu(%x)
      b = aten::repeat(%a, [64])
      gradient 0 = b)",
                            {Large()});
  EXPECT_EQ(made.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(made.status().message()),
              HasSubstr("g: phases.fused.ops[1]: aten::repeat: out of device memory: "));
  EXPECT_EQ(device_->usage().current, Bytes());
}

}  // namespace
}  // namespace harmony::worker
