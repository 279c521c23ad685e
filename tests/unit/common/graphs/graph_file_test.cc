#include "common/graphs/graph_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/common/graphs/graph_text.h"

namespace harmony::graphs {
namespace {

using ::testing::HasSubstr;

// y = (x * w) + x, where x * w is kept.
std::string Inner() {
  return GraphJson({{"forward", R"(x = slot 0
                                   w = slot 1
                                   p = aten::mul.Tensor(%x, %w)
                                   y = aten::add.Tensor(%p, %x, 1)
                                   output 0 = y)"},
                    {"saving", R"(x = slot 0
                                  w = slot 1
                                  p = aten::mul.Tensor(%x, %w)
                                  y = aten::add.Tensor(%p, %x, 1)
                                  output 0 = y
                                  saved 0 = p)"},
                    {"backward", R"(x = slot 0
                                    n = samples 0
                                    p = saved 0
                                    dy = tangent 0
                                    rows = sym::mul(%n, 4)
                                    flat = aten::view(%dy, [%rows, -1])
                                    [a, b] = aten::split.Tensor(%flat, 2, 0)
                                    top, _ = aten::max.dim(%a, 0, false)
                                    c = aten::to.dtype(%b, float32, true, false, null)
                                    d = aten::mul.Tensor(%c, -1.5e-3)
                                    gradient 0 = d
                                    gradient 1 = top)"}});
}

std::string Last() {
  return GraphJson({{"fused", R"(x = slot 0
                                 t = tangent 0
                                 l = aten::sum(%x, null)
                                 d = aten::expand(%t, [3], false)
                                 loss 0 = l
                                 gradient 0 = d)"}});
}

TEST(GraphFileTest, SizesMayDependOnTheLengthOfSequences) {
  const std::string text =
      absl::StrReplaceAll(Inner(), {{"\"samples\"", "\"length\""}, {"\"n\"", "\"2*n*s-n\""}});
  const auto file = ParseGraphFile(text, "f");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->phases.at(Phase::kBackward).inputs[1].kind, InputKind::kLength);
  EXPECT_EQ(file->slots[3].AtLength(5).ShapeFor(2), std::vector<int64_t>{18});
}

TEST(GraphFileTest, ReadsAllThatThereIs) {
  const auto file = ParseGraphFile(Inner(), "f");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->phases.size(), 3u);
  const PhaseText& backward = file->phases.at(Phase::kBackward);
  ASSERT_EQ(file->slots.size(), 8u);
  EXPECT_EQ(file->slots[3].dtype, DType::kF32);
  EXPECT_EQ(file->slots[3].shape, (std::vector<model::Extent>{{1, true}}));
  EXPECT_EQ(backward.values, 11);
  ASSERT_EQ(backward.inputs.size(), 4u);
  EXPECT_EQ(backward.inputs[1].kind, InputKind::kSamples);
  EXPECT_EQ(backward.inputs[3].kind, InputKind::kTangent);
  ASSERT_EQ(backward.operations.size(), 6u);
  EXPECT_EQ(backward.operations[0].name, "sym::mul");
  const Operation& split = backward.operations[2];
  EXPECT_EQ(split.overload, "Tensor");
  EXPECT_TRUE(split.returns_list);
  EXPECT_EQ(split.results, (std::vector<int>{6, 7}));
  EXPECT_EQ(backward.operations[3].results, (std::vector<int>{8, kUnusedResult}));
  const auto& shape = std::get<ArgumentList>(backward.operations[1].arguments[1].content);
  EXPECT_EQ(std::get<ValueNumber>(shape[0].content).value, 4);
  EXPECT_EQ(std::get<int64_t>(shape[1].content), -1);
  const std::vector<Argument>& to = backward.operations[4].arguments;
  EXPECT_EQ(std::get<DType>(to[1].content), DType::kF32);
  EXPECT_TRUE(std::get<bool>(to[2].content));
  EXPECT_TRUE(std::holds_alternative<std::monostate>(to[4].content));
  EXPECT_EQ(std::get<double>(backward.operations[5].arguments[1].content), -1.5e-3);
  EXPECT_EQ(backward.outputs[1].kind, OutputKind::kGradient);
  EXPECT_EQ(backward.outputs[1].index, 1);
  EXPECT_TRUE(ParseGraphFile(Last(), "f").ok());
}

TEST(GraphFileTest, ReadsTheArgumentsThatJsonHasNoNumbersFor) {
  const std::string text = absl::StrReplaceAll(
      Last(), {{"[{\"value\": 0}, null]",
                R"([{"float": "inf"}, {"float": "-inf"}, {"float": "nan"}, 9223372036854775807,
                    -9223372036854775808, {"layout": "strided"}, {"text": "mean"},
                    {"memory_format": "channels_last"}, {"device": "default"}])"}});
  const auto file = ParseGraphFile(text, "f");
  ASSERT_TRUE(file.ok()) << file.status();
  const std::vector<Argument>& made = file->phases.at(Phase::kFused).operations[0].arguments;
  EXPECT_EQ(std::get<double>(made[0].content), INFINITY);
  EXPECT_EQ(std::get<double>(made[1].content), -INFINITY);
  EXPECT_TRUE(std::isnan(std::get<double>(made[2].content)));
  EXPECT_EQ(std::get<int64_t>(made[3].content), INT64_MAX);
  EXPECT_EQ(std::get<int64_t>(made[4].content), INT64_MIN);
  EXPECT_EQ(std::get<std::string>(made[6].content), "mean");
  EXPECT_EQ(std::get<MemoryFormatName>(made[7].content), MemoryFormatName::kChannelsLast);
}

struct Broken {
  const char* what;
  const char* from;  // the first of which is replaced
  const char* to;
  const char* message;
};

std::string ReplaceFirst(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

class BrokenGraphFileTest : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenGraphFileTest, IsRefusedWithThePlace) {
  const auto file =
      ParseGraphFile(ReplaceFirst(Inner(), GetParam().from, GetParam().to), "graphs/g.json");
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("graphs/g.json: "));
  EXPECT_THAT(std::string(file.status().message()), HasSubstr(GetParam().message));
}

// The phases are in the order backward, forward, saving.
INSTANTIATE_TEST_SUITE_P(
    , BrokenGraphFileTest,
    ::testing::Values(
        Broken{"Version", "\"harmony_graph\": 1", "\"harmony_graph\": 2",
               "harmony_graph: is 2, a file of another version than 1"},
        Broken{"Key", "\"phases\"", "\"phasen\"", "unknown field 'phasen'"},
        Broken{"KeyOfAnOperation", "\"overload\": \"\"", "\"overload\": \"\", \"module\": 1",
               "phases.backward.ops[0]: unknown field 'module'"},
        Broken{"Phase", "\"forward\":", "\"foreword\":", "phases: unknown field 'foreword'"},
        Broken{"MissingPhase", "\"phases\": {", "\"phases\": {}, \"x\": {", "unknown field 'x'"},
        Broken{"Values", "\"values\": 11", "\"values\": 12",
               "phases.backward.values: is 12, but inputs and operations make 11"},
        Broken{"HugeValues", "\"values\": 11", "\"values\": 1048577",
               "phases.backward.values: must be at most 1048576"},
        Broken{"InputKind", "\"kind\": \"samples\"", "\"kind\": \"sample\"",
               "phases.backward.inputs[1].kind: 'sample' is none of slot, saved"},
        Broken{"InputIndex", "\"kind\": \"samples\", \"index\": 0",
               "\"kind\": \"samples\", \"index\": 1",
               "phases.backward.inputs[1].index: must be at most 0"},
        Broken{"InputTwice", "\"kind\": \"samples\"", "\"kind\": \"slot\"",
               "phases.backward.inputs[1].index: is there twice"},
        Broken{"InputOfAnotherPhase",
               "\"inputs\": [{\"value\": 0, \"kind\": \"slot\", \"index\": "
               "0}, {\"value\": 1, \"kind\": \"slot\"",
               "\"inputs\": [{\"value\": 0, \"kind\": \"slot\", \"index\": 0}, {\"value\": 1, "
               "\"kind\": \"tangent\"",
               "phases.forward.inputs[1].kind: not in the phase forward"},
        Broken{"SavedByNobody", "\"kind\": \"saved\", \"index\": 0",
               "\"kind\": \"saved\", \"index\": 1",
               "phases.backward.inputs[2].index: is nothing that the phase saving makes"},
        Broken{"TangentOfNothing", "\"kind\": \"tangent\", \"index\": 0",
               "\"kind\": \"tangent\", \"index\": 7",
               "phases.backward.inputs[3].index: is nothing that the phase saving makes"},
        Broken{"MadeTwice", "\"results\": [6, 7]", "\"results\": [6, 6]",
               "phases.backward.ops[2].results[1]: value 6 is made twice"},
        Broken{"UsedBeforeMade", "[{\"value\": 4}, -1]", "[{\"value\": 7}, -1]",
               "phases.backward.ops[1].arguments[1][0].value: value 7 is not made before"},
        Broken{"UsedByItsMaker", "[{\"value\": 4}, -1]", "[{\"value\": 5}, -1]",
               "phases.backward.ops[1].arguments[1][0].value: value 5 is not made before"},
        Broken{"ValueOutOfRange", "[{\"value\": 4}, -1]", "[{\"value\": 11}, -1]",
               "phases.backward.ops[1].arguments[1][0].value: must be at most 10"},
        Broken{"NegativeValue", "[{\"value\": 4}, -1]", "[{\"value\": -1}, -1]",
               "phases.backward.ops[1].arguments[1][0].value: must be at least 0"},
        Broken{"ResultOutOfRange", "\"results\": [8, -1]", "\"results\": [8, -2]",
               "phases.backward.ops[3].results[1]: must be at least -1"},
        Broken{"OutputOfNothing", "{\"value\": 10, \"kind\": \"gradient\"",
               "{\"value\": 11, \"kind\": \"gradient\"",
               "phases.backward.outputs[0].value: must be at most 10"},
        Broken{"OutputOfAnotherPhase", "\"kind\": \"gradient\", \"index\": 0",
               "\"kind\": \"update\", \"index\": 0",
               "phases.backward.outputs[0].kind: not in the phase backward"},
        Broken{"OutputTwice", "\"kind\": \"gradient\", \"index\": 1",
               "\"kind\": \"gradient\", \"index\": 0",
               "phases.backward.outputs[1].index: is there twice"},
        Broken{"OutputMissing", "\"kind\": \"output\", \"index\": 0",
               "\"kind\": \"output\", \"index\": 1",
               "phases.forward.outputs: of kind output must be 0 to 1, are only 1"},
        Broken{"Namespace", "aten::view", "quantized::view",
               "phases.backward.ops[1].op: 'quantized::view' is not of the namespaces"},
        Broken{"IntegerOperation", "sym::mul", "sym::pow",
               "phases.backward.ops[0].op: 'sym::pow' is not known"},
        Broken{"IntegerArguments", "[{\"value\": 1}, 4]", "[{\"value\": 1}]",
               "phases.backward.ops[0].arguments: sym::mul takes 2, here are 1"},
        Broken{"IntegerResults", "\"results\": [4]", "\"results\": [4, -1]",
               "phases.backward.ops[0].results: sym::mul has one result, here are 2"},
        Broken{"IntegerOverload", "\"sym::mul\", \"overload\": \"\"",
               "\"sym::mul\", \"overload\": \"x\"",
               "phases.backward.ops[0]: sym::mul has no overloads and returns no list"},
        Broken{"SlotType", "\"float32\"", "\"float33\"",
               "slots[0].dtype: 'float33' is none of float32"},
        Broken{"SlotShape", "[\"n\"]", "[\"n*n\"]",
               "slots[0].shape[0]: must be a number, \"n\" or \"K*n\""},
        Broken{"SlotKey", "{\"dtype\"", "{\"name\": \"x\", \"dtype\"",
               "slots[0]: unknown field 'name'"},
        Broken{"Slot", "\"kind\": \"slot\", \"index\": 1", "\"kind\": \"slot\", \"index\": 8",
               "phases.forward.inputs[1].index: must be at most 7"},
        Broken{"GradientOfNoSlot", "\"kind\": \"gradient\", \"index\": 1",
               "\"kind\": \"gradient\", \"index\": 8",
               "phases.backward.outputs[1].index: must be at most 7"},
        Broken{"ArgumentKind", "{\"dtype\": \"float32\"}", "{\"type\": \"float32\"}",
               "phases.backward.ops[4].arguments[1]: must have one of the fields value, float"},
        Broken{"ArgumentOfTwoKinds", "{\"dtype\": \"float32\"}",
               "{\"dtype\": \"float32\", \"value\": 0}",
               "phases.backward.ops[4].arguments[1]: unknown field 'dtype'"},
        Broken{"DType", "{\"dtype\": \"float32\"}", "{\"dtype\": \"float8\"}",
               "phases.backward.ops[4].arguments[1].dtype: 'float8' is none of float32"},
        Broken{"BareFlag", "{\"bool\": true}", "true",
               "phases.backward.ops[4].arguments[2]: must be a whole number, is true"},
        Broken{"BareFloat", "{\"float\": \"-1.5e-3\"}", "-0.0015",
               "phases.backward.ops[5].arguments[1]: must be a whole number"},
        Broken{"NoNumber", "\"-1.5e-3\"", "\"-1.5e-\"",
               "phases.backward.ops[5].arguments[1].float: '-1.5e-' is no number"},
        Broken{"ListInList", "[{\"value\": 4}, -1]", "[{\"value\": 4}, [-1]]",
               "phases.backward.ops[1].arguments[1][1]: a list within a list"},
        Broken{"LargeInteger", "[{\"value\": 4}, -1]", "[{\"value\": 4}, 9223372036854775808]",
               "phases.backward.ops[1].arguments[1][1]: must be at most 9223372036854775807"}),
    [](const auto& info) { return info.param.what; });

TEST(GraphFileTest, ALastLayerHasALoss) {
  const auto file = ParseGraphFile(
      ReplaceFirst(Last(), "{\"value\": 2, \"kind\": \"loss\", \"index\": 0}, ", ""), "f");
  EXPECT_THAT(std::string(file.status().message()),
              HasSubstr("phases.fused.outputs: must have a loss"));
}

TEST(GraphFileTest, NoTextIsTooShort) {
  const std::string text = Inner();
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(ParseGraphFile(absl::string_view(text).substr(0, size), "f").ok()) << size;
  }
}

}  // namespace
}  // namespace harmony::graphs
