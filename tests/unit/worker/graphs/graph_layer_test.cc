// The layers of an exported model by themselves, against autograd, and in groups of a chain.

#include "worker/graphs/graph_layer.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/model_sizes.h"
#include "tests/support/layer_harness.h"
#include "tests/unit/common/graphs/graph_text.h"
#include "tests/unit/worker/graphs/exported_fixture.h"
#include "tests/unit/worker/graphs/exported_step.h"
#include "worker/device/cpu_device.h"

namespace harmony::worker {
namespace {

using ::harmony::testing_support::LayerCase;
using ::harmony::testing_support::LayerHarness;
using ::testing::HasSubstr;

const std::vector<model::LayerRange> kWhole = {{0, 3}};
const std::vector<std::vector<model::LayerRange>> kGroupings = {
    {{0, 0}, {1, 1}, {2, 2}, {3, 3}}, {{0, 1}, {2, 3}}, {{0, 2}, {3, 3}}, {{0, 0}, {1, 3}}};

// ---- Against autograd ----

struct Expected {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
};

Expected ByAutograd(const ExportedStep& step) {
  std::map<std::string, at::Tensor> w;
  for (const char* name : {"table", "scale", "weight", "head"}) {
    w[name] = step.Weight(name).clone().requires_grad_();
  }
  std::vector<at::Tensor> ids, labels;
  for (int64_t m = 0; m < kMicrobatches; ++m) {
    ids.push_back(step.Input(0, m));
    labels.push_back(step.Input(1, m));
  }
  const at::Tensor v0 = at::embedding(w["table"], at::cat(ids)), v1 = v0 * 2;
  const at::Tensor v2 = at::tanh(v0 * w["scale"]);
  const at::Tensor v3 = at::relu(v2.matmul(w["weight"].t())) + v1 * w["table"].sum(0);
  const at::Tensor logits = (v3 + v1).view({-1, kWidth}).matmul(w["head"].t());
  const at::Tensor loss =
      at::nll_loss(at::log_softmax(logits, 1), at::cat(labels).view({-1}), {}, at::Reduction::Sum);
  const double scale = 1.0 / (kMicrobatches * kSamples * kTokens);
  (loss * scale).backward();
  Expected expected;
  expected.loss = loss.item<double>();
  for (const auto& [name, tensor] : w) expected.gradients[name] = tensor.grad();
  return expected;
}

class GraphLayerTest : public ::testing::Test {
 protected:
  CpuDevice device_;
};

TEST_F(GraphLayerTest, GradientsAreThoseOfAutograd) {
  for (const auto reduction : {model::LossReduction::kMean, model::LossReduction::kSum}) {
    const ExportedFixture fixture(reduction);
    ExportedStep step(fixture, device_);
    ASSERT_EQ(step.Run(kWhole), absl::OkStatus());
    const Expected expected = ByAutograd(step);
    EXPECT_NEAR(step.LossSum(), expected.loss, 1e-4);
    EXPECT_EQ(step.LabelCount(), kMicrobatches * kSamples * kTokens);
    for (const auto& [name, gradient] : expected.gradients) {
      EXPECT_TRUE(at::allclose(step.Gradient(name), gradient, 1e-4, 1e-6))
          << name << "\n"
          << step.Gradient(name) << "\n"
          << gradient;
    }
  }
}

TEST_F(GraphLayerTest, EveryGroupingHasTheSameBits) {
  const ExportedFixture fixture;
  ExportedStep whole(fixture, device_);
  ASSERT_EQ(whole.Run(kWhole), absl::OkStatus());
  for (const auto& groups : kGroupings) {
    for (const bool keep : {false, true}) {
      ExportedStep step(fixture, device_);
      ASSERT_EQ(step.Run(groups, keep), absl::OkStatus());
      EXPECT_EQ(step.Bits(), whole.Bits()) << groups.size() << " groups, keep " << keep;
    }
  }
}

TEST_F(GraphLayerTest, StatisticsGoFromMicrobatchToMicrobatch) {
  const ExportedFixture fixture;
  for (const auto& groups : kGroupings) {
    ExportedStep step(fixture, device_);
    step.Weight("count").fill_(40);
    at::Tensor mean = step.Weight("mean").clone();
    for (int64_t m = 0; m < kMicrobatches; ++m) {
      const at::Tensor v0 = at::embedding(step.Weight("table"), step.Input(0, m));
      mean = at::add(mean * 0.9, v0.mean(at::IntArrayRef({0, 1})), 0.1);
    }
    const at::Tensor before = step.Weight("mean").clone();
    ASSERT_EQ(step.Run(groups), absl::OkStatus());
    EXPECT_TRUE(at::allclose(step.Gradient("mean"), mean, 1e-6));
    EXPECT_EQ(step.Gradient("count").item<int64_t>(), 40 + kMicrobatches);
    // The update at the end of the step is what changes the statistics themselves.
    EXPECT_TRUE(at::equal(step.Weight("mean"), before));
    EXPECT_EQ(step.Weight("count").item<int64_t>(), 40);
  }
}

// One statistic becomes what another one was.
TEST_F(GraphLayerTest, StatisticsMayBeHandedOn) {
  ExportedFixture fixture;
  fixture.exported.parameters[3].dtype = DType::kF32;
  fixture.exported.parameters[3].shape = {kWidth};
  std::string graph = GraphOf(kNormLayer);
  const std::string count = graphs::SlotJson("[]", "int64");
  graph.replace(graph.find(count), count.size(), graphs::SlotJson("[3]"));
  // "update 3 = next" becomes "update 3 = mean", behind "update 2 = new".
  const std::string next = "{\"value\": 7, \"kind\": \"update\", \"index\": 3}";
  ASSERT_NE(graph.find(next), std::string::npos) << graph;
  graph.replace(graph.find(next), next.size(),
                "{\"value\": 2, \"kind\": \"update\", \"index\": 3}");
  fixture.SetGraph(kNormLayer, graph);
  ExportedStep step(fixture, device_);
  at::Tensor mean = step.Weight("mean").clone(), before;
  for (int64_t m = 0; m < kMicrobatches; ++m) {
    const at::Tensor v0 = at::embedding(step.Weight("table"), step.Input(0, m));
    before = mean;
    mean = at::add(mean * 0.9, v0.mean(at::IntArrayRef({0, 1})), 0.1);
  }
  ASSERT_EQ(step.Run(kWhole), absl::OkStatus());
  EXPECT_TRUE(at::allclose(step.Gradient("mean"), mean, 1e-6));
  EXPECT_TRUE(at::allclose(step.Gradient("count"), before, 1e-6));
}

// ---- By the rules that every implementation follows ----

class GraphLayerHarnessTest : public GraphLayerTest {
 protected:
  GraphLayerHarnessTest() {
    subject_.model = model::BuildModelSpec(fixture_.exported);
    subject_.layers = *fixture_.MakeLayers();
    subject_.device = &device_;
    subject_.samples = kSamples;
  }

  const ExportedFixture fixture_;
  LayerCase subject_;
};

TEST_F(GraphLayerHarnessTest, GradientsAreDerivatives) {
  for (int layer : {0, kMixLayer, kHeadLayer}) {
    LayerHarness(subject_, layer).GradientsAreDerivatives();
  }
}

TEST_F(GraphLayerHarnessTest, GradientsAccumulate) {
  for (int layer : {0, kMixLayer, kHeadLayer}) LayerHarness(subject_, layer).GradientsAccumulate();
}

TEST_F(GraphLayerHarnessTest, KeptEqualsRecomputed) {
  EXPECT_GT(subject_.layers[kMixLayer]->KeptBytes(kSamples), Bytes());
  LayerHarness(subject_, kMixLayer).KeptEqualsRecomputed();
  LayerHarness(subject_, 0).KeptEqualsRecomputed();
}

TEST_F(GraphLayerHarnessTest, TheDescriptionKnowsWhatIsKept) {
  for (int layer = 0; layer <= kHeadLayer; ++layer) {
    EXPECT_EQ(subject_.layers[layer]->KeptBytes(kSamples),
              model::KeptTensorBytes(subject_.model.cost_of(layer), kSamples))
        << layer;
  }
  EXPECT_EQ(subject_.layers[kNormLayer]->KeptBytes(kSamples), Bytes());
}

// ---- Memory ----

TEST(GraphLayerMemoryTest, TheWorkspaceIsEmptyBetweenTasks) {
  const auto device = *CpuDevice::Create({.workspace = MiB(1)});
  const ExportedFixture fixture;
  for (const bool keep : {false, true}) {
    ExportedStep step(fixture, *device);
    ASSERT_EQ(step.Run(kGroupings[1], keep), absl::OkStatus());
    EXPECT_EQ(device->usage().current, Bytes());
  }
}

TEST(GraphLayerMemoryTest, TooLittleIsNamedWithTheLayer) {
  const auto device = *CpuDevice::Create({.workspace = KiB(1)});
  const ExportedFixture fixture;
  ExportedStep step(fixture, *device);
  const absl::Status status = step.Run(kGroupings[0]);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer head: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("out of device memory: 256 B"));
  EXPECT_EQ(device->usage().current, Bytes());
}

// ---- What is wrong ----

TEST_F(GraphLayerTest, NumbersOfTheDataAreChecked) {
  const ExportedFixture fixture;
  ExportedStep ids(fixture, device_);
  ids.Numbers(0, 0)[5] = kIds;
  const absl::Status outside = ids.Run(kWhole);
  EXPECT_EQ(outside.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(outside.message()),
              HasSubstr("layer table: 'ids' has a number at position 5 that is not in [0, 11)"));
  ExportedStep labels(fixture, device_);
  labels.Numbers(1, 2)[0] = -1;
  EXPECT_EQ(labels.Run(kWhole).code(), absl::StatusCode::kOutOfRange);
}

TEST_F(GraphLayerTest, AFileHasItsDigest) {
  ExportedFixture fixture;
  std::ofstream(fixture.PathOf(kMixLayer), std::ios::app) << "\n";
  const absl::Status changed = fixture.MakeLayers().status();
  EXPECT_EQ(changed.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(changed.message()),
              HasSubstr(absl::StrCat("layer mix: ", fixture.PathOf(kMixLayer), ": the SHA-256")));
  std::filesystem::remove(fixture.PathOf(kMixLayer));
  EXPECT_EQ(fixture.MakeLayers().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(GraphLayerTest, ADescriptionOfAnotherModelIsRefused) {
  ExportedFixture fixture;
  const model::ModelSpec model = model::BuildModelSpec(fixture.exported);
  fixture.exported.values[2].tensor.name = "other";
  const absl::Status status = fixture.MakeLayersOf(model).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer norm: "));
}

struct Misfit {
  const char* name;
  int layer;
  const char* from;
  const char* to;
  const char* message;
};

class MisfitTest : public ::testing::TestWithParam<Misfit> {};

TEST_P(MisfitTest, IsRefused) {
  ExportedFixture fixture;
  std::string text = GraphOf(GetParam().layer);
  const std::string from = GetParam().from;
  ASSERT_NE(text.rfind(from), std::string::npos) << text;
  fixture.SetGraph(GetParam().layer, text.replace(text.rfind(from), from.size(), GetParam().to));
  const absl::Status status = fixture.MakeLayers().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

// The last match is replaced; phases are in the order backward, forward, saving.
INSTANTIATE_TEST_SUITE_P(
    , MisfitTest,
    ::testing::Values(
        Misfit{"SlotShape", kMixLayer, "\"shape\": [3, 3]", "\"shape\": [3, 4]",
               "layer mix: its slots are not of the types and shapes of its graph's"},
        Misfit{"SlotType", kNormLayer, "\"dtype\": \"int64\"", "\"dtype\": \"int32\"",
               "layer norm: its slots are not of the types and shapes of its graph's"},
        Misfit{"GradientOfAnInput", kHeadLayer, "\"kind\": \"gradient\", \"index\": 3",
               "\"kind\": \"gradient\", \"index\": 2",
               "layer head: its phase fused makes a gradient of slot 2, which has none"},
        Misfit{"GradientOfAStatistic", kNormLayer, "\"kind\": \"gradient\", \"index\": 1",
               "\"kind\": \"gradient\", \"index\": 2",
               "layer norm: its phase backward makes a gradient of slot 2, which has none"},
        Misfit{"UpdateOfAParameter", kNormLayer, "\"kind\": \"update\", \"index\": 3",
               "\"kind\": \"update\", \"index\": 1",
               "layer norm: its phase saving makes an update of slot 1, which takes none"},
        Misfit{"StatisticForgotten", kNormLayer,
               ", {\"value\": 7, \"kind\": \"update\", "
               "\"index\": 3}",
               "", "layer norm: its phase saving updates 1 of the layer's 2 statistics"},
        Misfit{"Operator", kMixLayer, "aten::matmul", "aten::matmal",
               "has no operator 'aten::matmal'"}),
    [](const auto& info) { return info.param.name; });

TEST_F(GraphLayerTest, WhatIsSavedHasToBeDescribed) {
  ExportedFixture fixture;
  fixture.exported.graphs[kMixLayer].saved.pop_back();
  EXPECT_THAT(std::string(fixture.MakeLayers().status().message()),
              HasSubstr("layer mix: its phase saving saves 4 tensors, model.json names 3"));
}

TEST_F(GraphLayerTest, OnlyTheLastLayerIsFused) {
  ExportedFixture fixture;
  std::swap(fixture.exported.layers[kMixLayer].graph, fixture.exported.layers[kHeadLayer].graph);
  EXPECT_THAT(std::string(fixture.MakeLayers().status().message()),
              HasSubstr("layer mix: only the last layer's graph is fused"));
}

// What was described otherwise than it is shows when it is computed.
TEST_F(GraphLayerTest, SizesAreChecked) {
  ExportedFixture fixture;
  fixture.exported.graphs[kMixLayer].saved[1].shape[1].size = 1;
  ExportedStep saved(fixture, device_);
  EXPECT_THAT(std::string(saved.Run(kWhole).message()),
              HasSubstr("what is saved at 1 is Float [2, 3, 4], which model.json does not say"));
  ExportedFixture other;
  std::string narrow = GraphOf(kNormLayer);
  const std::string tanh = R"("aten::tanh", "overload": "", "arguments": [{"value": 2}])";
  ASSERT_NE(narrow.find(tanh), std::string::npos) << narrow;
  narrow.replace(narrow.find(tanh), tanh.size(),
                 R"("aten::sum", "overload": "dim_IntList",
                    "arguments": [{"value": 2}, [2], {"bool": true}, null])");
  other.SetGraph(kNormLayer, narrow);
  ExportedStep output(other, device_);
  EXPECT_THAT(std::string(output.Run({{0, 1}, {2, 3}}).message()),
              HasSubstr("the output 'v2' is Float [2, 4, 1], must be Float [2, 4, 3]"));
}

}  // namespace
}  // namespace harmony::worker
