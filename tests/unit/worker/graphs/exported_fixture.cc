#include "tests/unit/worker/graphs/exported_fixture.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/io/model_graphs.h"
#include "tests/unit/common/graphs/graph_text.h"
#include "worker/graphs/graph_layer.h"
#include "worker/graphs/layer_graphs.h"

namespace harmony::worker {
namespace {

using model::Extent;
using model::SlotKind;
using model::TensorRole;

constexpr char kTableForward[] = R"(
    ids = slot 0
    table = slot 1
    v0 = aten::embedding(%table, %ids, -1, false, false)
    v1 = aten::mul.Tensor(%v0, 2.0)
    output 0 = v0
    output 1 = v1)";
constexpr char kTableBackward[] = R"(
    ids = slot 0
    g0 = tangent 0
    g1 = tangent 1
    twice = aten::mul.Tensor(%g1, 2.0)
    g = aten::add.Tensor(%g0, %twice, 1)
    dtable = aten::embedding_dense_backward(%g, %ids, 11, -1, false)
    gradient 1 = dtable)";

// The mean is updated before its old value is read for the last time.
constexpr char kNormForward[] = R"(
    v0 = slot 0
    scale = slot 1
    scaled = aten::mul.Tensor(%v0, %scale)
    v2 = aten::tanh(%scaled)
    output 0 = v2)";
constexpr char kNormSaving[] = R"(
    v0 = slot 0
    scale = slot 1
    mean = slot 2
    count = slot 3
    old = aten::mul.Tensor(%mean, 0.9)
    now = aten::mean.dim(%v0, [0, 1], false, null)
    new = aten::add.Tensor(%old, %now, 0.1)
    next = aten::add.Tensor(%count, 1, 1)
    again = aten::mul.Tensor(%mean, 0.0)
    scaled = aten::mul.Tensor(%v0, %scale)
    shifted = aten::add.Tensor(%scaled, %again, 1)
    v2 = aten::tanh(%shifted)
    output 0 = v2
    saved 0 = v2
    update 2 = new
    update 3 = next)";
constexpr char kNormBackward[] = R"(
    v0 = slot 0
    scale = slot 1
    v2 = saved 0
    g = tangent 0
    d = aten::tanh_backward(%g, %v2)
    dv0 = aten::mul.Tensor(%d, %scale)
    p = aten::mul.Tensor(%d, %v0)
    dscale = aten::sum.dim_IntList(%p, [0, 1], false, null)
    gradient 0 = dv0
    gradient 1 = dscale)";

// Saved are the activations, v2 transposed (dense, but not contiguous) and v1 in two parts with
// holes.
constexpr char kMixForward[] = R"(
    v2 = slot 0
    v1 = slot 1
    weight = slot 2
    table = slot 3
    t = aten::t(%weight)
    h = aten::matmul(%v2, %t)
    r = aten::relu(%h)
    c = aten::sum.dim_IntList(%table, [0], false, null)
    p = aten::mul.Tensor(%v1, %c)
    v3 = aten::add.Tensor(%r, %p, 1)
    output 0 = v3)";
constexpr char kMixSaving[] = R"(
    copy = aten::mul.Tensor(%v2, 1.0)
    across = aten::transpose.int(%copy, 1, 2)
    all = aten::mul.Tensor(%v1, 1.0)
    left = aten::slice.Tensor(%all, 2, 0, 2, 1)
    right = aten::slice.Tensor(%all, 2, 2, 3, 1)
    saved 0 = r
    saved 1 = across
    saved 2 = left
    saved 3 = right)";
constexpr char kMixBackward[] = R"(
    weight = slot 2
    table = slot 3
    r = saved 0
    across = saved 1
    left = saved 2
    right = saved 3
    g = tangent 0
    n = samples 0
    dh = aten::threshold_backward(%g, %r, 0)
    rows = sym::mul(%n, 4)
    v2 = aten::transpose.int(%across, 1, 2)
    flat = aten::reshape(%v2, [%rows, 3])
    dflat = aten::view(%dh, [%rows, 3])
    dt = aten::t(%dflat)
    dweight = aten::mm(%dt, %flat)
    dv2 = aten::matmul(%dh, %weight)
    c = aten::sum.dim_IntList(%table, [0], false, null)
    dv1 = aten::mul.Tensor(%g, %c)
    [gleft, gright] = aten::split_with_sizes(%g, [2, 1], 2)
    pleft = aten::mul.Tensor(%gleft, %left)
    pright = aten::mul.Tensor(%gright, %right)
    product = aten::cat([%pleft, %pright], 2)
    dc = aten::sum.dim_IntList(%product, [0, 1], false, null)
    dtable = aten::expand(%dc, [11, 3], false)
    gradient 0 = dv2
    gradient 1 = dv1
    gradient 2 = dweight
    gradient 3 = dtable)";

constexpr char kHead[] = R"(
    v3 = slot 0
    v1 = slot 1
    labels = slot 2
    head = slot 3
    one = tangent 0
    n = samples 0
    rows = sym::mul(%n, 4)
    h = aten::add.Tensor(%v3, %v1, 1)
    flat = aten::view(%h, [%rows, 3])
    t = aten::t(%head)
    logits = aten::mm(%flat, %t)
    logp = aten::_log_softmax(%logits, 1, false)
    column = aten::view(%labels, [%rows])
    wide = aten::_to_copy(%column, int64, null, null, null, false, null)
    loss, weight = aten::nll_loss_forward(%logp, %wide, null, REDUCTION, -100)
    dlogp = aten::nll_loss_backward(%one, %logp, %wide, null, REDUCTION, -100, %weight)
    dlogits = aten::_log_softmax_backward_data(%dlogp, %logp, 1, float32)
    dt = aten::t(%dlogits)
    dhead = aten::mm(%dt, %flat)
    dflat = aten::mm(%dlogits, %head)
    dh = aten::view(%dflat, [%n, 4, 3])
    loss 0 = loss
    gradient 0 = dh
    gradient 1 = dh
    gradient 3 = dhead)";

const Extent kPerSample{1, true};
Extent Fixed(int64_t size) { return {size, false}; }

model::ExportedValue Value(const char* name) {
  return {{name, DType::kF32, {kPerSample, Fixed(kTokens), Fixed(kWidth)}}, true};
}

model::ExportedInput Integers(const char* name, int64_t below) {
  return {{name, DType::kI32, {kPerSample, Fixed(kTokens)}}, below};
}

model::ExportedParameter Parameter(const char* name, std::vector<int64_t> shape,
                                   TensorRole role = TensorRole::kTrained,
                                   DType dtype = DType::kF32) {
  model::ExportedParameter parameter;
  parameter.name = name;
  parameter.dtype = dtype;
  parameter.shape = std::move(shape);
  parameter.role = role;
  return parameter;
}

}  // namespace

std::string GraphOf(int layer, model::LossReduction reduction) {
  const std::string value = graphs::SlotJson("[\"n\", 4, 3]"), vector = graphs::SlotJson("[3]"),
                    table = graphs::SlotJson("[11, 3]"),
                    integers = graphs::SlotJson("[\"n\", 4]", "int32");
  if (layer == 0) {
    return graphs::GraphJson(
        {{"forward", kTableForward}, {"saving", kTableForward}, {"backward", kTableBackward}},
        {integers, table});
  }
  if (layer == kNormLayer) {
    return graphs::GraphJson(
        {{"forward", kNormForward}, {"saving", kNormSaving}, {"backward", kNormBackward}},
        {value, vector, vector, graphs::SlotJson("[]", "int64")});
  }
  if (layer == kMixLayer) {
    return graphs::GraphJson({{"forward", kMixForward},
                              {"saving", absl::StrCat(kMixForward, kMixSaving)},
                              {"backward", kMixBackward}},
                             {value, value, graphs::SlotJson("[3, 3]"), table});
  }
  const bool mean = reduction == model::LossReduction::kMean;
  return graphs::GraphJson(
      {{"fused", absl::StrReplaceAll(kHead, {{"REDUCTION", mean ? "1" : "2"}})}},
      {value, value, integers, graphs::SlotJson("[5, 3]")});
}

ExportedFixture::ExportedFixture(model::LossReduction reduction)
    : directory([] {
        std::string name = absl::StrCat(::testing::TempDir(), "/exported.XXXXXX");
        EXPECT_NE(mkdtemp(name.data()), nullptr);
        return name;
      }()) {
  std::filesystem::create_directory(absl::StrCat(directory, "/graphs"));
  exported.name = "fixture";
  exported.torch = "2.11.0";
  exported.inputs = {Integers("ids", kIds), Integers("labels", kClasses)};
  exported.values = {Value("v0"), Value("v1"), Value("v2"), Value("v3")};
  exported.parameters = {
      Parameter("table", {kIds, kWidth}),
      Parameter("scale", {kWidth}),
      Parameter("mean", {kWidth}, TensorRole::kStatistic),
      Parameter("count", {}, TensorRole::kStatistic, DType::kI64),
      Parameter("weight", {kWidth, kWidth}),
      Parameter("head", {kClasses, kWidth}),
  };
  exported.layers = {
      {"table", 0, {{SlotKind::kInput, 0}, {SlotKind::kParameter, 0}}, {0, 1}},
      {"norm",
       1,
       {{SlotKind::kValue, 0},
        {SlotKind::kParameter, 1},
        {SlotKind::kParameter, 2},
        {SlotKind::kParameter, 3}},
       {2}},
      {"mix",
       2,
       {{SlotKind::kValue, 2},
        {SlotKind::kValue, 1},
        {SlotKind::kParameter, 4},
        {SlotKind::kParameter, 0}},
       {3}},
      {"head",
       3,
       {{SlotKind::kValue, 3},
        {SlotKind::kValue, 1},
        {SlotKind::kInput, 1},
        {SlotKind::kParameter, 5}},
       {}},
  };
  exported.graphs.resize(4);
  const auto saved = [](std::vector<Extent> shape) {
    return model::ExportedTensor{"", DType::kF32, std::move(shape)};
  };
  exported.graphs[1].saved = {saved({kPerSample, Fixed(kTokens), Fixed(kWidth)})};
  exported.graphs[2].saved = {saved({kPerSample, Fixed(kTokens), Fixed(kWidth)}),
                              saved({kPerSample, Fixed(kWidth), Fixed(kTokens)}),
                              saved({kPerSample, Fixed(kTokens), Fixed(2)}),
                              saved({kPerSample, Fixed(kTokens), Fixed(1)})};
  exported.reduction = reduction;
  exported.labels_per_sample = kTokens;
  exported.sequence_length = {kTokens, kTokens};
  for (int layer = 0; layer <= kHeadLayer; ++layer) SetGraph(layer, GraphOf(layer, reduction));
}

ExportedFixture::~ExportedFixture() { std::filesystem::remove_all(directory); }

std::string ExportedFixture::PathOf(int layer) const {
  return absl::StrCat(directory, "/graphs/", exported.graphs[layer].digest, ".json");
}

void ExportedFixture::SetGraph(int layer, const std::string& text) {
  exported.graphs[layer].digest = io::GraphDigest(text);
  std::ofstream(PathOf(layer)) << text;
}

absl::StatusOr<LayerChain> ExportedFixture::MakeLayersOf(const model::ModelSpec& model) const {
  return MakeGraphLayers(model, exported, directory, device);
}

}  // namespace harmony::worker
