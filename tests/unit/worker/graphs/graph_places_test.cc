#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/common/graphs/graph_text.h"
#include "tests/unit/worker/graphs/graph_compute.h"
#include "worker/device/cpu_device.h"
#include "worker/graphs/graph.h"
#include "worker/graphs/layer_graphs.h"
#include "worker/graphs/tensors.h"

namespace harmony::worker {
namespace {

constexpr int64_t kFloat = sizeof(float);

// The gradients of a run, each into a place of its own. Whether they were made there is seen by
// what the workspace held.
class GraphPlacesTest : public ::testing::Test {
 protected:
  static constexpr int64_t kMiB = int64_t{1} << 20;

  // Gradient 0 and on; they and the inputs are of a MiB each.
  std::vector<at::Tensor> RunInPlaces(const std::string& lines, int inputs,
                                      std::vector<at::Tensor> places) {
    const auto graph = BindLines(lines);
    EXPECT_TRUE(graph.ok()) << graph.status();
    std::vector<c10::IValue> values;
    for (int i = 0; i < inputs; ++i) values.push_back(Input());
    const int64_t before = device_->usage().current.count();
    made_there_.assign(places.size(), false);
    const absl::Status status = graph->Run(
        std::move(values),
        [&](const graphs::PhaseOutput& output, const at::Tensor& made) {
          if (output.kind != graphs::OutputKind::kGradient) return;
          at::Tensor& place = places[static_cast<size_t>(output.index)];
          made_there_[static_cast<size_t>(output.index)] = made.data_ptr() == place.data_ptr();
          PutInto(place.view(made.sizes()), made, "gradient");
        },
        [&](const graphs::PhaseOutput& output) {
          return output.kind == graphs::OutputKind::kGradient
                     ? places[static_cast<size_t>(output.index)]
                     : at::Tensor();
        });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_LE(device_->usage().current.count(), before);
    return places;
  }

  // On a slot boundary and not in the workspace, as a task's places are.
  at::Tensor Place() {
    memory_.emplace_back(static_cast<float*>(std::aligned_alloc(kSlotAlignment, kMiB)), &std::free);
    return at::from_blob(memory_.back().get(), {kMiB / kFloat}, at::kFloat).fill_(-7);
  }
  at::Tensor Input() {
    at::Tensor input = Place();
    for (int64_t i = 0; i < kMiB / kFloat; ++i) {
      memory_.back().get()[i] = -1 + static_cast<float>(i) * 0x1p-17f;
    }
    return input;
  }
  int64_t PeakInMiB() const { return device_->usage().peak.count() / kMiB; }

  std::unique_ptr<CpuDevice> device_ = *CpuDevice::Create({.workspace = MiB(16)});
  std::vector<std::unique_ptr<float, void (*)(void*)>> memory_;
  std::vector<bool> made_there_;
};

TEST_F(GraphPlacesTest, AResultIsMadeWhereItBelongs) {
  const auto places = RunInPlaces(R"(
      x = slot 0
      a = aten::relu(%x)
      gradient 0 = a)",
                                  1, {Place()});
  EXPECT_TRUE(made_there_[0]);
  EXPECT_TRUE(at::equal(places[0], at::relu(Input())));
}

TEST_F(GraphPlacesTest, SoIsOneInAnotherShapeThatIsReadLater) {
  const auto places = RunInPlaces(R"(
      x = slot 0
      a = aten::relu(%x)
      v = aten::view(%a, [-1, 4])
      b = aten::neg(%a)
      gradient 0 = v
      gradient 1 = b)",
                                  1, {Place(), Place()});
  EXPECT_TRUE(made_there_[0]);
  EXPECT_TRUE(made_there_[1]);
  const at::Tensor a = at::relu(Input());
  EXPECT_TRUE(at::equal(places[0], a));
  EXPECT_TRUE(at::equal(places[1], at::neg(a)));
}

// The mantissa is made first, and as large.
TEST_F(GraphPlacesTest, AResultInThePlaceOfAnotherIsMovedOut) {
  const auto places = RunInPlaces(R"(
      x = slot 0
      mantissa, exponent = aten::frexp.Tensor(%x)
      a = aten::neg(%mantissa)
      gradient 0 = exponent
      gradient 1 = a)",
                                  1, {Place().view(at::kInt), Place()});
  const auto [mantissa, exponent] = at::frexp(Input());
  EXPECT_TRUE(at::equal(places[0], exponent));
  EXPECT_TRUE(at::equal(places[1], at::neg(mantissa)));
}

TEST_F(GraphPlacesTest, OneWithItsDimensionsInAnotherOrderIsPutThereInOrder) {
  const auto places = RunInPlaces(R"(
      x = slot 0
      image = aten::view(%x, [1, 4, 256, 256])
      copy = aten::clone(%image, {"memory_format": "channels_last"})
      gradient 0 = copy)",
                                  1, {Place()});
  EXPECT_FALSE(made_there_[0]);
  EXPECT_TRUE(at::equal(places[0], Input()));
}

TEST_F(GraphPlacesTest, AValueWithTwoPlacesIsInBoth) {
  const auto places = RunInPlaces(R"(
      x = slot 0
      a = aten::relu(%x)
      gradient 0 = a
      gradient 1 = a)",
                                  1, {Place(), Place()});
  const at::Tensor a = at::relu(Input());
  EXPECT_TRUE(at::equal(places[0], a));
  EXPECT_TRUE(at::equal(places[1], a));
}

TEST_F(GraphPlacesTest, WhatIsFreedBeforeAResultIsMadeLiesInItsPlace) {
  const auto places = RunInPlaces(R"(
      x = slot 0
      a = aten::relu(%x)
      b = aten::neg(%a)
      c = aten::exp(%b)
      gradient 0 = c)",
                                  1, {Place()});
  EXPECT_EQ(PeakInMiB(), 1);  // b
  EXPECT_TRUE(made_there_[0]);
  EXPECT_TRUE(at::equal(places[0], at::exp(at::neg(at::relu(Input())))));
}

TEST_F(GraphPlacesTest, WhatAViewNeedsLaterDoesNot) {
  const auto places = RunInPlaces(R"(
      x = slot 0
      a = aten::relu(%x)
      v = aten::slice.Tensor(%a, 0, 0, 131072, 1)
      b = aten::neg(%x)
      c = aten::exp(%v)
      gradient 0 = b
      gradient 1 = c)",
                                  1, {Place(), Place().slice(0, 0, 131072)});
  EXPECT_EQ(PeakInMiB(), 1);
  EXPECT_TRUE(at::equal(places[0], at::neg(Input())));
  EXPECT_TRUE(at::equal(places[1], at::exp(at::relu(Input()).slice(0, 0, 131072))));
}

// The schema of type_as does not say that it may return its argument.
TEST_F(GraphPlacesTest, WhatTurnsOutToLiveLongerIsMovedOut) {
  const auto places = RunInPlaces(R"(
      x = slot 0
      a = aten::relu(%x)
      same = aten::type_as(%a, %x)
      b = aten::neg(%x)
      c = aten::exp(%same)
      gradient 0 = b
      gradient 1 = c)",
                                  1, {Place(), Place()});
  EXPECT_TRUE(made_there_[0]);
  EXPECT_TRUE(at::equal(places[0], at::neg(Input())));
  EXPECT_TRUE(at::equal(places[1], at::exp(at::relu(Input()))));
}

TEST_F(GraphPlacesTest, TemporariesLieInMemoryThatIsIdleThroughout) {
  const auto graph = BindLines(R"(
      x = slot 0
      a = aten::relu(%x)
      b = aten::neg(%a)
      c = aten::exp(%b)
      gradient 0 = c)");
  ASSERT_TRUE(graph.ok()) << graph.status();
  const std::vector<at::Tensor> idle = {Place(), Place()};
  LentPlaces lent;
  for (const at::Tensor& place : idle) {
    lent.Add(place.data_ptr(), place.nbytes(), LentPlaces::kLater);
  }
  const absl::Status status = graph->Run(
      {Input()}, [](const graphs::PhaseOutput&, const at::Tensor&) {},
      [](const graphs::PhaseOutput&) { return at::Tensor(); }, &lent);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(PeakInMiB(), 0);
}

// A layer in a task that has the place of its input's gradient from the beginning: what is saved is
// needed by the backward's first step, and the gradient comes with its second.
class SavedPlacesTest : public GraphPlacesTest {
 protected:
  // `saved`: what saves a MiB as saved 0.
  void Bind(const std::string& saved) {
    const std::string forward = R"(
      x = slot 0
      a = aten::relu(%x)
      output 0 = a)";
    const std::string backward = R"(
      t = tangent 0
      s = saved 0
      g = aten::mul.Tensor(%s, %t)
      h = aten::exp(%g)
      gradient 0 = h)";
    const std::string saving = forward + saved;
    const auto file = graphs::ParseGraphFile(
        graphs::GraphJson({{"forward", forward}, {"saving", saving}, {"backward", backward}}), "g");
    ASSERT_TRUE(file.ok()) << file.status();
    auto bound = BindLayerGraphs(*file, "g", "9.9", c10::Device(c10::kCPU));
    ASSERT_TRUE(bound.ok()) << bound.status();
    graphs_ = *std::move(bound);
    lent_.Add(place_.data_ptr(), place_.nbytes(), LentPlaces::kLater);
  }
  // What is saved, when the backward puts something into the place by the step `needed_at`.
  at::Tensor Save(int needed_at) {
    at::Tensor saved;
    const Graph::LaterPlace later = {{DeviceAddress(reinterpret_cast<uint64_t>(place_.data_ptr())),
                                      DType::kF32,
                                      {place_.numel()}},
                                     needed_at};
    const absl::Status status = graphs_.recomputing->Run(
        {Input()},
        [&](const graphs::PhaseOutput& output, at::Tensor made) {
          if (output.kind == graphs::OutputKind::kSaved && output.index == 0)
            saved = std::move(made);
        },
        [](const graphs::PhaseOutput&) { return at::Tensor(); }, &lent_, {&later, 1});
    EXPECT_TRUE(status.ok()) << status;
    return saved;
  }
  // With the only reference to what is saved, which an initializer list would keep another one to.
  std::vector<c10::IValue> ToGoBack(at::Tensor saved) {
    std::vector<c10::IValue> inputs = {Input()};
    inputs.emplace_back(std::move(saved));
    return inputs;
  }
  // The gradient, made in the place.
  void GoBack(at::Tensor saved) {
    lent_.Reclaim();
    const absl::Status status = graphs_.backward->Run(
        ToGoBack(std::move(saved)),
        [&](const graphs::PhaseOutput&, const at::Tensor& made) {
          EXPECT_EQ(made.data_ptr(), place_.data_ptr());
        },
        [&](const graphs::PhaseOutput&) { return place_; }, &lent_);
    EXPECT_TRUE(status.ok()) << status;
  }
  bool InPlace(const at::Tensor& tensor) const {
    return tensor.storage().data() == place_.data_ptr();
  }

  const at::Tensor place_ = Place();
  LentPlaces lent_;
  LayerGraphs graphs_;
};

constexpr char kSavesItsOutput[] = "\n saved 0 = a";

TEST_F(SavedPlacesTest, WhatIsSavedLiesThereUntilItsBackwardNeedsThePlace) {
  Bind(kSavesItsOutput);
  EXPECT_EQ(graphs_.backward->saved_needs(), std::vector<int>{0});
  ASSERT_EQ(graphs_.backward->placed().size(), 1);
  EXPECT_EQ(graphs_.backward->placed()[0].second, 1);
  at::Tensor saved = Save(/*needed_at=*/1);
  EXPECT_TRUE(InPlace(saved));
  EXPECT_EQ(PeakInMiB(), 0);
  EXPECT_TRUE(at::equal(saved, at::relu(Input())));
  GoBack(std::move(saved));
  EXPECT_TRUE(at::equal(place_, at::exp(at::relu(Input()) * Input())));
}

TEST_F(SavedPlacesTest, WhatThatStepStillNeedsDoesNot) {
  Bind(kSavesItsOutput);
  at::Tensor saved = Save(/*needed_at=*/0);
  EXPECT_FALSE(InPlace(saved));
  EXPECT_EQ(PeakInMiB(), 1);
  GoBack(std::move(saved));
  EXPECT_TRUE(at::equal(place_, at::exp(at::relu(Input()) * Input())));
}

// The backward's graph, had it known of the step, would have let it be saved elsewhere.
TEST_F(SavedPlacesTest, WhatIsThereWhenThePlaceIsNeededIsMovedOut) {
  Bind(kSavesItsOutput);
  at::Tensor saved = Save(/*needed_at=*/1);
  ASSERT_TRUE(InPlace(saved));
  lent_.Reclaim();
  at::Tensor made;
  const absl::Status status = graphs_.backward->Run(
      ToGoBack(std::move(saved)),
      [&](const graphs::PhaseOutput&, at::Tensor h) { made = std::move(h); },
      [](const graphs::PhaseOutput&) { return at::Tensor(); },
      &lent_);  // it has no use for the place
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_FALSE(InPlace(made));
  EXPECT_TRUE(at::equal(made, at::exp(at::relu(Input()) * Input())));
}

// The small ones are needed for good, the large one no more.
TEST_F(SavedPlacesTest, AResultBesideSavedStatisticsLiesThere) {
  Bind(R"(
      n, mean, rstd = aten::native_layer_norm(%x, [262144], null, null, 0.5)
      b = aten::neg(%n)
      saved 0 = b
      saved 1 = mean)");
  const at::Tensor saved = Save(/*needed_at=*/0);
  EXPECT_FALSE(InPlace(saved));
  EXPECT_EQ(PeakInMiB(), 1);  // not two
}

// It lives longer than the place is the run's.
TEST_F(GraphPlacesTest, AnUpdateThatIsAViewOfAResultLiesElsewhere) {
  const auto graph = BindLines(R"(
      x = slot 0
      a = aten::relu(%x)
      u = aten::slice.Tensor(%a, 0, 0, 1000, 1)
      gradient 0 = a
      update 1 = u)");
  ASSERT_TRUE(graph.ok()) << graph.status();
  const at::Tensor place = Place();
  at::Tensor update;
  const absl::Status status = graph->Run(
      {Input()},
      [&](const graphs::PhaseOutput& output, at::Tensor made) {
        if (output.kind == graphs::OutputKind::kUpdate) update = std::move(made);
      },
      [&](const graphs::PhaseOutput& output) {
        return output.kind == graphs::OutputKind::kGradient ? place : at::Tensor();
      });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_NE(update.storage().data(), place.data_ptr());
  EXPECT_TRUE(at::equal(update, at::relu(Input()).slice(0, 0, 1000)));
  EXPECT_GT(device_->usage().current, Bytes());
  update.reset();
  EXPECT_EQ(device_->usage().current, Bytes());
}

// A bf16 gradient of a large weight lies in no order of its own; only a piece is widened at a time.
TEST_F(GraphPlacesTest, WhatIsAddedToAWiderSumTakesNoMemoryOfItsSize) {
  constexpr int64_t kRows = 512, kColumns = 8192;
  std::vector<c10::BFloat16> numbers(kRows * kColumns);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 251);
  std::vector<float> sums(numbers.size(), 0.5F);
  AddInto(at::from_blob(sums.data(), {kColumns, kRows}, at::kFloat),
          at::from_blob(numbers.data(), {kRows, kColumns}, at::kBFloat16).t());
  EXPECT_LE(PeakInMiB(), 1);
  int64_t wrong = 0;
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    const int64_t number = i % kRows * kColumns + i / kRows;
    wrong += sums[static_cast<size_t>(i)] != 0.5F + static_cast<float>(number % 251);
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace harmony::worker
