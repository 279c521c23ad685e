#include "common/model/exported_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/model/architecture.h"
#include "common/model/model_sizes.h"

namespace harmony::model {
namespace {

constexpr char kDigest[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

nlohmann::json Parameter(const char* name, std::vector<int64_t> shape, const char* role = "trained",
                         const char* dtype = "float32") {
  return {{"name", name}, {"aliases", nlohmann::json::array()}, {"dtype", dtype},  {"shape", shape},
          {"role", role}, {"weight_decay", shape.size() > 1},   {"exported", true}};
}

nlohmann::json Value(const char* name, nlohmann::json shape) {
  return {{"name", name}, {"dtype", "float32"}, {"shape", shape}, {"gradient", true}};
}

nlohmann::json Slot(const char* kind, int index) { return nlohmann::json::array({kind, index}); }

std::string DigestOf(char last) {
  std::string digest = kDigest;
  digest.back() = last;
  return digest;
}

nlohmann::json Graph(char last) {
  const nlohmann::json sizes = {{100, 7}, {40, 1000}};
  return {{"graph", DigestOf(last)},
          {"forward_flops", 1000.0},
          {"saved",
           {{{"dtype", "float32"}, {"shape", {"n", 8}}}, {{"dtype", "bool"}, {"shape", {"3*n"}}}}},
          {"workspace",
           {{"forward", sizes},
            {"saving", sizes},
            {"keeping", sizes},
            {"backward", {{500, 0}}},
            {"kept_backward", sizes},
            {"fused", sizes}}}};
}

// Three layers: the first makes x and a value that skips to the last one; the table of the first is
// tied to the last; the second one has a statistic and a constant.
nlohmann::json Document() {
  return {
      {"harmony_model", 1},
      {"name", "three"},
      {"torch", "2.11.0"},
      {"inputs",
       {{{"name", "ids"}, {"dtype", "int64"}, {"shape", {"n", 4}}, {"values_below", 10}},
        {{"name", "labels"}, {"dtype", "int64"}, {"shape", {"n"}}, {"values_below", 3}}}},
      {"values", {Value("x", {"n", 4, 8}), Value("skip", {"2*n", 8}), Value("y", {"n", 4, 8})}},
      {"parameters",
       {Parameter("table", {10, 8}), Parameter("w", {8, 8}), Parameter("mean", {8}, "statistic"),
        Parameter("count", {}, "statistic", "int64"), Parameter("mask", {4, 4}, "fixed", "bool"),
        Parameter("b", {8})}},
      {"layers",
       {{{"name", "first"},
         {"graph", DigestOf('a')},
         {"slots", nlohmann::json::array({Slot("parameter", 0), Slot("input", 0)})},
         {"outputs", {0, 1}}},
        {{"name", "middle"},
         {"graph", DigestOf('b')},
         {"slots",
          nlohmann::json::array({Slot("parameter", 4), Slot("parameter", 2), Slot("value", 0),
                                 Slot("parameter", 1), Slot("parameter", 3)})},
         {"outputs", {2}}},
        {{"name", "last"},
         {"graph", DigestOf('c')},
         {"slots", nlohmann::json::array({Slot("value", 2), Slot("value", 1), Slot("parameter", 5),
                                          Slot("parameter", 0), Slot("input", 1)})},
         {"outputs", nlohmann::json::array()}}}},
      {"graphs", {Graph('a'), Graph('b'), Graph('c')}},
      {"loss", {{"reduction", "mean"}, {"labels_per_sample", 1}}}};
}

absl::StatusOr<ExportedModel> Parse(const nlohmann::json& document) {
  return ParseExportedModel(document.dump(), "DIR/model.json");
}

TEST(ExportedModelTest, IsDescribedAsAnyOtherModelIs) {
  const auto exported = Parse(Document());
  ASSERT_TRUE(exported.ok()) << exported.status();
  const ModelSpec model = BuildModelSpec(*exported);
  ASSERT_EQ(model.num_layers(), 3);

  // What skips a layer crosses both boundaries.
  ASSERT_EQ(model.boundaries.size(), 4u);
  EXPECT_TRUE(model.boundaries[0].empty());
  ASSERT_EQ(model.boundaries[1].size(), 2u);
  ASSERT_EQ(model.boundaries[2].size(), 2u);
  EXPECT_EQ(model.boundaries[2][0].name, "skip");
  EXPECT_EQ(model.boundaries[2][0].per_sample(), Bytes(2 * 8 * 4));
  EXPECT_EQ(model.boundaries[2][1].name, "y");
  EXPECT_TRUE(model.boundaries[3].empty());
  EXPECT_EQ(model.inputs[0].layers, std::vector<int>{0});
  EXPECT_EQ(model.inputs[1].layers, std::vector<int>{2});

  // The tied table is a block of its own; constants come last, so that all else lies alike.
  ASSERT_EQ(model.blocks.size(), 3u);
  EXPECT_TRUE(model.blocks[0].tied());
  const ParamBlock& middle = model.blocks[1];
  ASSERT_EQ(middle.tensors.size(), 4u);
  EXPECT_EQ(middle.tensors[0].name, "w");
  EXPECT_EQ(middle.tensors[1].name, "mean");
  EXPECT_EQ(middle.tensors[2].name, "count");
  EXPECT_EQ(middle.tensors[3].name, "mask");
  EXPECT_EQ(middle.tensors[2].gradient.offset, middle.tensors[2].weight.offset);
  EXPECT_EQ(middle.gradient_bytes, middle.tensors[3].weight.offset);
  EXPECT_EQ(middle.weight_bytes, middle.gradient_bytes + Bytes(kSlotAlignment));
  EXPECT_TRUE(HasStatistics(model));

  const std::vector<ParameterPlace> places = PlacesOfParameters(*exported);
  for (size_t i = 0; i < places.size(); ++i) {
    EXPECT_EQ(model.blocks[places[i].block].tensors[places[i].tensor].name,
              exported->parameters[i].name);
  }
}

TEST(ExportedModelTest, WorkspaceIsWhatTheExportCounted) {
  const ModelSpec model = BuildModelSpec(*Parse(Document()));
  // The larger of 100 n + 7 and 40 n + 1000, beside what crosses boundaries inside the task.
  EXPECT_EQ(WorkspacePeak(model, WorkspaceOf::kForward, {1, 1}, 2, 1), Bytes(1080));
  EXPECT_EQ(WorkspacePeak(model, WorkspaceOf::kForward, {1, 1}, 100, 1), Bytes(10007));
  EXPECT_GE(WorkspaceBound(model, WorkspaceOf::kForward, {1, 1}, 100), Bytes(10007));
  // Nothing is kept for the middle layer: its statistic must see the microbatches in order.
  EXPECT_EQ(KeptTensorBytes(model.cost_of(1), 4), Bytes());
  EXPECT_EQ(model.cost_of(0).recompute, Recompute::kAlways);
  EXPECT_EQ(model.cost_of(1).recompute, Recompute::kAlways);
  EXPECT_EQ(model.cost_of(2).recompute, Recompute::kNever);
}

// A value that is wrong where the pointer says, and what its message has to say.
struct Mistake {
  const char* pointer;
  nlohmann::json value;
  const char* message;
};

void ExpectRefused(nlohmann::json document, const Mistake& mistake) {
  document[nlohmann::json::json_pointer(mistake.pointer)] = mistake.value;
  const absl::Status status = Parse(document).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << mistake.pointer;
  EXPECT_NE(std::string(status.message()).find(mistake.message), std::string::npos)
      << mistake.pointer << ": " << status.message();
  EXPECT_NE(std::string(status.message()).find("DIR/model.json"), std::string::npos);
}

TEST(ExportedModelTest, EveryMistakeIsNamedWhereItIs) {
  const Mistake mistakes[] = {
      {"/harmony_model", 2, "harmony_model: is 2, a directory of another version"},
      {"/colour", "red", "colour"},
      {"/inputs/0/shape", {4, "n"}, "inputs[0].shape: must begin with \"n\""},
      {"/inputs/1/name", "ids", "inputs[1].name: 'ids' is there twice"},
      {"/values/0/shape/0", "n*4", "values[0].shape[0]: must be a number, \"n\" or \"K*n\""},
      {"/values/0/shape/0", "-5*n", "values[0].shape[0]: must be a number, \"n\" or \"K*n\""},
      {"/values/0/shape/0", "-n", "values[0].shape[0]: must be a number, \"n\" or \"K*n\""},
      {"/values/0/shape", {4, 8}, "values[0].shape: must have \"n\" in one"},
      {"/values/0/shape", {"n", 1 << 30, 1 << 30}, "values[0].shape: is too large"},
      {"/values/0/dtype", "complex64", "values[0].dtype: 'complex64' is no type of tensors"},
      {"/parameters/1/dtype", "float16", "'w' is trained, and parameters are trained in float32"},
      {"/parameters/1/role", "frozen", "parameters[1].role: 'frozen' is none of trained, fixed"},
      {"/parameters/1/shape", {"n"}, "parameters[1].shape: must consist of numbers"},
      {"/graphs/0/graph", "../../etc/passwd", "must be a SHA-256"},
      {"/graphs/1/graph", DigestOf('a'), "graphs[1].graph: is there twice"},
      {"/graphs/0/workspace/forward", {{1, 2, 3}}, "must be [per_sample, fixed]"},
      {"/layers/0/graph", DigestOf('d'), "layers[0].graph: is not among"},
      {"/layers/0/slots/1", Slot("value", 0), "is a value that no earlier layer makes"},
      {"/layers/1/slots/0", Slot("parameter", 1), "layers[1].slots[3]: the layer reads this twice"},
      {"/layers/1/slots/0", Slot("parameter", 99), "layers[1].slots[0]"},
      {"/layers/1/outputs", {0}, "has a value that is made twice"},
      {"/layers/2/outputs", {2}, "layers[2].outputs"},
      {"/layers/2/slots", nlohmann::json::array({Slot("value", 2)}),
       "layers[2].slots: name no trained parameter"},
      {"/layers/2/slots/1", Slot("input", 0), "has 'skip', which no layer reads"},
      {"/layers", nlohmann::json::array(), "layers: must have at least two layers"},
      {"/loss/labels_per_sample", 0, "loss.labels_per_sample"},
  };
  for (const Mistake& mistake : mistakes) ExpectRefused(Document(), mistake);
}

// Labels of which not all count, and a number for each sample.
nlohmann::json WithDerivedInputs() {
  nlohmann::json document = Document();
  document["inputs"].push_back({{"name", "label_counts"},
                                {"dtype", "int64"},
                                {"shape", {"n", 2}},
                                {"values_below", 0},
                                {"derived", "label_counts"}});
  document["inputs"].push_back({{"name", "sample_keys"},
                                {"dtype", "int64"},
                                {"shape", {"n"}},
                                {"values_below", 0},
                                {"derived", "sample_keys"}});
  document["layers"][1]["slots"].push_back(Slot("input", 3));
  document["layers"][2]["slots"].push_back(Slot("input", 2));
  document["loss"] = {{"reduction", "sum"},
                      {"labels_per_sample", 1},
                      {"counted", {{"input", 1}, {"first", 0}, {"ignored", -100}}}};
  return document;
}

TEST(ExportedModelTest, LabelsThatDoNotCountAreAllowedBesideTheirRange) {
  const auto exported = Parse(WithDerivedInputs());
  ASSERT_TRUE(exported.ok()) << exported.status();
  const ModelSpec model = BuildModelSpec(*exported);
  ASSERT_TRUE(model.counted_labels.has_value());
  EXPECT_EQ(model.counted_labels->ignored, -100);
  EXPECT_EQ(model.inputs[1].range().also, -100);
  EXPECT_FALSE(model.inputs[0].range().also.has_value());
  EXPECT_EQ(model.inputs[2].source, InputSource::kLabelCounts);
  EXPECT_EQ(model.inputs[2].layers, std::vector<int>{2});
  EXPECT_EQ(model.inputs[3].source, InputSource::kSampleKeys);
  EXPECT_EQ(model.inputs[3].layers, std::vector<int>{1});
}

TEST(ExportedModelTest, AnInputThatOthersReadAsWellHasNoLabelThatDoesNotCount) {
  nlohmann::json document = WithDerivedInputs();
  document["layers"][1]["slots"].push_back(Slot("input", 1));
  const ModelSpec model = BuildModelSpec(*Parse(document));
  EXPECT_TRUE(model.counted_labels.has_value());
  EXPECT_FALSE(model.inputs[1].range().also.has_value());
}

TEST(ExportedModelTest, MistakesInWhatIsDerivedAreNamed) {
  const Mistake mistakes[] = {
      {"/inputs/2/shape", {"n"}, "inputs[2].derived: makes int64 numbers, [\"n\", 2]"},
      {"/inputs/3/dtype", "int32", "inputs[3].derived: makes int64 numbers, [\"n\"]"},
      {"/inputs/3/values_below", 5, "inputs[3].values_below: must be 0: it is derived"},
      {"/loss", {{"reduction", "sum"}, {"labels_per_sample", 1}}, "loss: must have \"counted\""},
      {"/inputs/3/derived", "labels", "'labels' is none of label_counts, sample_keys"},
      {"/inputs/2",
       {{"name", "more"},
        {"dtype", "int64"},
        {"shape", {"n"}},
        {"values_below", 0},
        {"derived", "sample_keys"}},
       "inputs[3].derived: is there twice"},
      {"/loss/counted/input", 9, "loss.counted.input"},
      {"/loss/counted/input", 3, "is no tensor of integers that the data bring"},
      {"/loss/counted/first", 1, "loss.counted.first: with \"labels_per_sample\" is more"},
      {"/loss/reduction", "mean", "loss.counted: needs a loss that is a sum"},
      {"/layers/2/slots/5", Slot("input", 0), "that the last layer reads"},
  };
  for (const Mistake& mistake : mistakes) ExpectRefused(WithDerivedInputs(), mistake);
  nlohmann::json small = WithDerivedInputs();
  small["inputs"][1]["dtype"] = "int8";
  ExpectRefused(small, {"/loss/counted/ignored", 200, "loss.counted.ignored: is no I8"});
}

TEST(ExportedModelTest, AStatisticOfSeveralLayersIsRefused) {
  nlohmann::json document = Document();
  document["layers"][2]["slots"].push_back(Slot("parameter", 2));
  EXPECT_NE(std::string(Parse(document).status().message()).find("statistic 'mean'"),
            std::string::npos);
}

// As Document(), with the length of the sequences free.
nlohmann::json OfAnyLength() {
  nlohmann::json document = WithDerivedInputs();
  document["sequence_length"] = {{"least", 2}, {"most", 1024}};
  document["inputs"][0]["shape"] = {"n", "s"};
  document["inputs"][1]["shape"] = {"n", "s"};
  document["values"][0]["shape"] = {"n", "s", 8};
  document["values"][1]["shape"] = {"2*n*s-2*n", 8};
  document["values"][2]["shape"] = {"n*s", 8};
  document["graphs"][1]["forward_flops"] = "3*s*s+1000*s";
  document["graphs"][1]["saved"][0]["shape"] = {"n", 2, "s", "s"};
  const auto pair = [](nlohmann::json a, nlohmann::json b) {
    return nlohmann::json::array({a, b});
  };
  document["graphs"][1]["workspace"]["forward"] =
      nlohmann::json::array({pair("4*s*s+100", 7), pair("40*s", "s*s-s")});
  document["loss"]["labels_per_sample"] = "s-1";
  document["loss"]["counted"]["first"] = 1;
  return document;
}

TEST(ExportedModelTest, SumsOfAttentionCountOnGpus) {
  nlohmann::json document = OfAnyLength();
  const auto pair = [](nlohmann::json a, nlohmann::json b) {
    return nlohmann::json::array({a, b});
  };
  document["graphs"][1]["workspace"]["attention_sums"] =
      nlohmann::json::array({pair("64*s", "32*s"), pair(5000, 10)});
  const auto exported = ParseArchitecture(document.dump(), "model.json");
  ASSERT_TRUE(exported.ok()) << exported.status();
  ModelSpec model = BuildModelSpec(*exported, 6);
  const Bytes without = WorkspaceBound(model, WorkspaceOf::kBackward, {1, 1}, 3);
  model.on_gpus = true;
  EXPECT_EQ(
      WorkspaceBound(model, WorkspaceOf::kBackward, {1, 1}, 3) - without,
      Bytes(std::max(3 * 384 + 192 * kMostMultiprocessors, 3 * 5000 + 10 * kMostMultiprocessors)));
  document["graphs"][1]["workspace"]["attention_sums"] = 7;
  EXPECT_FALSE(ParseArchitecture(document.dump(), "model.json").ok());
}

TEST(ExportedModelTest, AFreeLengthIsChosenWhereTheDescriptionIsMade) {
  const auto exported = ParseArchitecture(OfAnyLength().dump(), "model.json");
  ASSERT_TRUE(exported.ok()) << exported.status();
  const ModelSpec model = BuildModelSpec(*exported, 6);
  EXPECT_EQ(model.inputs[0].tensor.shape, std::vector<int64_t>{6});
  EXPECT_EQ(model.inputs[2].tensor.shape, std::vector<int64_t>{2});
  EXPECT_EQ(model.boundaries[1][0].shape, (std::vector<int64_t>{6, 8}));
  EXPECT_EQ(model.boundaries[1][1].shape, (std::vector<int64_t>{10, 8}));
  EXPECT_EQ(model.boundaries[2][1].per_sample(), Bytes(6 * 8 * 4));
  EXPECT_EQ(model.labels_per_sample, 5);
  EXPECT_EQ(model.counted_labels->first, 1);
  EXPECT_EQ(model.cost_of(1).forward_flops, 3 * 36 + 6000);
  EXPECT_EQ(model.cost_of(1).saved_per_sample, Bytes(4 * 2 * 36 + 3));
  // The larger of 244 n + 7 and 240 n + 30.
  EXPECT_EQ(WorkspacePeak(model, WorkspaceOf::kForward, {1, 1}, 1, 1), Bytes(270));
  EXPECT_EQ(WorkspacePeak(model, WorkspaceOf::kForward, {1, 1}, 100, 1), Bytes(24407));
  // One graph takes another time for another length.
  EXPECT_EQ(BuildModelSpec(*exported, 6).cost_of(1).work, model.cost_of(1).work);
  EXPECT_NE(BuildModelSpec(*exported, 7).cost_of(1).work, model.cost_of(1).work);

  EXPECT_EQ(*SequenceLengthFor(*exported, 2), 2);
  EXPECT_EQ(*SequenceLengthFor(*exported, 1024), 1024);
  for (const int64_t other : {1, 1025}) {
    const std::string message(SequenceLengthFor(*exported, other).status().message());
    EXPECT_NE(message.find(absl::StrCat("is ", other, ", but")), std::string::npos) << message;
    EXPECT_NE(message.find("exported for 2 to 1024"), std::string::npos) << message;
  }
}

TEST(ExportedModelTest, MistakesInWhatDependsOnTheLengthAreNamed) {
  const Mistake mistakes[] = {
      {"/sequence_length", 128, "depends on s, but \"sequence_length\" is no"},
      {"/sequence_length/least", 0, "sequence_length.least"},
      {"/sequence_length/most", 1, "sequence_length.most"},
      {"/sequence_length/most", 1 << 30, "sequence_length.most"},
      {"/sequence_length/best", 5, "best"},
      {"/values/0/shape/1", "s*2", "values[0].shape[1]: must be a number, \"n\""},
      {"/values/0/shape/1", "s+s", "values[0].shape[1]: must be a number"},
      {"/values/0/shape/1", "1+s", "values[0].shape[1]: must be a number"},
      {"/values/0/shape/1", "s+", "values[0].shape[1]: must be a number"},
      {"/values/0/shape/1", "n*s+1", "values[0].shape[1]: must be a number"},
      {"/values/0/shape/1", "s*s*s*s*s", "values[0].shape[1]: must be a number"},
      {"/values/0/shape/1", "s-3", "values[0].shape[1]: is less than 0 or falls"},
      {"/values/0/shape/1", "1099511627776*s", "is not in [0, 1099511627776] for s from 2"},
      {"/values/0/shape/1", "9223372036854775807*s", "values[0].shape[1]: must be a number"},
      {"/values/0/shape/1", "n*s", "values[0].shape: must have \"n\" in one"},
      {"/values/0/shape/1", "1099511627776", "must be a number"},
      {"/values/0/shape/2", "s*s*s*s", "values[0].shape: is too large"},
      {"/inputs/0/shape", {"s", "n"}, "inputs[0].shape: must begin with \"n\""},
      {"/parameters/1/shape", {"s"}, "parameters[1].shape: must consist of numbers"},
      {"/graphs/1/forward_flops", "1e9*s", "graphs[1].forward_flops: must be a number, or a sum"},
      {"/graphs/1/forward_flops", "n*s", "graphs[1].forward_flops: must be a number, or a sum"},
      {"/graphs/1/workspace/forward", nlohmann::json::array({nlohmann::json::array({"12", 7})}),
       "must be a number, or a sum"},
      {"/loss/labels_per_sample", "s", "loss.counted.first: with \"labels_per_sample\" is more"},
      {"/loss/labels_per_sample", "s-2", "loss.labels_per_sample: is not in [1,"},
      {"/loss/counted/first", "s", "loss.counted.first: with \"labels_per_sample\" is more"},
  };
  for (const Mistake& mistake : mistakes) ExpectRefused(OfAnyLength(), mistake);
}

TEST(ArchitectureTest, TheTextSaysWhichSourceItIs) {
  const auto exported = ParseArchitecture(Document().dump(), "model.json");
  ASSERT_TRUE(exported.ok()) << exported.status();
  ASSERT_TRUE(std::holds_alternative<ExportedModel>(*exported));
  EXPECT_EQ(*SequenceLengthFor(*exported, 1024), 1);  // it reads no sequences

  nlohmann::json sequences = Document();
  sequences["sequence_length"] = 128;
  const auto reads = ParseArchitecture(sequences.dump(), "model.json");
  ASSERT_TRUE(reads.ok());
  EXPECT_EQ(*SequenceLengthFor(*reads, 128), 128);
  EXPECT_NE(std::string(SequenceLengthFor(*reads, 64).status().message()).find("exported for 128"),
            std::string::npos);

  const auto family = ParseArchitecture(*PresetConfigJson("gpt2-mini"), "config.json");
  ASSERT_TRUE(family.ok()) << family.status();
  EXPECT_EQ(*SequenceLengthFor(*family, 64), 64);
  EXPECT_EQ(BuildModelSpec(*family, 64).name, "gpt2");
}

}  // namespace
}  // namespace harmony::model
