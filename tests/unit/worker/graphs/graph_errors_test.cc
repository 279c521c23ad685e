// Graphs that are refused when they are bound, and those that fail when they run.

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/common/graphs/graph_text.h"
#include "tests/unit/worker/graphs/graph_compute.h"
#include "worker/graphs/graph.h"

namespace harmony::worker {
namespace {

using ::testing::HasSubstr;

struct Wrong {
  const char* name;
  const char* line;  // that makes y, from x and the numbers n and i
  const char* message;
};

std::string With(const char* line) {
  return absl::StrCat(R"(
      x = slot 0
      i = slot 1
      n = samples 0
      )",
                      line, "\ngradient 0 = y");
}

class RefusedGraphTest : public ::testing::TestWithParam<Wrong> {};

TEST_P(RefusedGraphTest, IsRefusedWithThePlace) {
  const auto graph = BindLines(With(GetParam().line));
  EXPECT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument) << graph.status();
  EXPECT_THAT(std::string(graph.status().message()),
              HasSubstr(absl::StrCat("g: phases.fused", GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    , RefusedGraphTest,
    ::testing::Values(
        Wrong{"Operator", "y = aten::relux(%x)",
              ".ops[0]: LibTorch 2.11.0 has no operator 'aten::relux' with the overload ''; the "
              "graph was made by PyTorch 9.9"},
        Wrong{"Overload", "y = aten::add.Tensors(%x, %x, 1)", ".ops[0]: LibTorch"},
        Wrong{"InPlace", "y = aten::relu_(%x)", ".ops[0]: aten::relu_ writes its arguments"},
        Wrong{"Out", "y = aten::relu.out(%x, %x)", ".ops[0]: aten::relu.out writes its arguments"},
        Wrong{"HiddenWrite", "y = aten::batch_norm(%x, null, null, %x, %x, true, 0.1, 0.1, false)",
              ".ops[0]: aten::batch_norm writes its arguments"},
        Wrong{"Statistics",
              "y, _, _ = aten::native_batch_norm(%x, null, null, %x, %x, true, 0.1, 0.1)",
              ".ops[0]: aten::native_batch_norm writes its running statistics"},
        Wrong{"Random", "y = aten::rand_like(%x, null, null, null, null, null)",
              ".ops[0]: aten::rand_like draws random numbers"},
        Wrong{"Dropout", "y, _ = aten::native_dropout(%x, 0.0, true)",
              ".ops[0]: aten::native_dropout draws random numbers"},
        Wrong{"AttentionWithDropout",
              "y, _ = aten::_scaled_dot_product_flash_attention_for_cpu(%x, %x, %x, 0.1, false, "
              "null, null)",
              ".ops[0]: aten::_scaled_dot_product_flash_attention_for_cpu draws random"},
        Wrong{"Files",
              "y = aten::from_file({\"text\": \"secret\"}, false, 9, float32, null, cpu, null)",
              ".ops[0]: aten::from_file reads files"},
        Wrong{"Kernel", "y = aten::cudnn_convolution_relu(%x, %x, null, [1], [1], [1], 1)",
              ".ops[0]: aten::cudnn_convolution_relu has no kernel for the device cpu"},
        Wrong{"TooFew", "y = aten::relu()", ".ops[0]: aten::relu: takes 1 arguments, here are 0"},
        Wrong{"TooMany", "y = aten::relu(%x, 1)", ".ops[0]: aten::relu: takes 1 arguments"},
        Wrong{"NullForATensor", "y = aten::relu(null)",
              ".ops[0]: aten::relu: arguments[0]: must be of type Tensor, is null"},
        Wrong{"ListForATensor", "y = aten::relu([%x])",
              ".ops[0]: aten::relu: arguments[0]: must be of type Tensor, is a list"},
        Wrong{"TensorForADimension", "y = aten::transpose.int(%x, %i, 0)",
              ".ops[0]: aten::transpose.int: arguments[1]: must be of type int, value 1 is a "
              "tensor"},
        Wrong{"FloatForAnInteger", "y = aten::transpose.int(%x, 0, 1.0)",
              ".ops[0]: aten::transpose.int: arguments[2]: must be of type int, is the float 1"},
        Wrong{"FlagForAnInteger", "y = aten::transpose.int(%x, 0, true)",
              ".ops[0]: aten::transpose.int: arguments[2]: must be of type int, is true"},
        Wrong{"IntegerForAFlag", "y = aten::argmax(%x, 0, 1)",
              ".ops[0]: aten::argmax: arguments[2]: must be of type bool, is 1"},
        Wrong{"TensorInAShape", "y = aten::view(%x, [2, %i])",
              ".ops[0]: aten::view: arguments[1]: [1]: must be of type SymInt, value 1 is a "
              "tensor"},
        Wrong{"FloatInAShape", "y = aten::view(%x, [2, 0.5])",
              ".ops[0]: aten::view: arguments[1]: [1]: must be of type SymInt, is the float"},
        Wrong{"NumberForAShape", "y = aten::view(%x, 2)",
              ".ops[0]: aten::view: arguments[1]: must be of type SymInt[], is 2"},
        Wrong{"NullInAList", "y = aten::cat([%x, null], 0)",
              ".ops[0]: aten::cat: arguments[0]: [1]: must be of type Tensor, is null"},
        Wrong{"TextForADType", "y = aten::to.dtype(%x, {\"text\": \"half\"}, false, false, null)",
              ".ops[0]: aten::to.dtype: arguments[1]: must be of type ScalarType, is a text"},
        Wrong{"IntegerForADType", "y = aten::to.dtype(%x, 6, false, false, null)",
              ".ops[0]: aten::to.dtype: arguments[1]: must be of type ScalarType, is 6"},
        Wrong{"Generator", "y = aten::bernoulli(%x, 1)",
              ".ops[0]: aten::bernoulli: arguments[1]: must be of type Generator, is 1"},
        Wrong{"Results", "y, _ = aten::relu(%x)", ".ops[0]: aten::relu: has 1 results, here are 2"},
        Wrong{"ListNotSaid", "y = aten::split.Tensor(%x, 2, 0)",
              ".ops[0]: aten::split.Tensor: returns a list of tensors"},
        Wrong{"NoList", "[y] = aten::relu(%x)",
              ".ops[0]: aten::relu: does not return a list of tensors"},
        Wrong{"Scalar", "y = aten::_local_scalar_dense(%x)",
              ".ops[0]: aten::_local_scalar_dense: results[0]: is of type Scalar"},
        Wrong{"SizeOfAnInteger", "y = sym::size(%n, 0)", ".ops[0]: arguments[0]: must be a tensor"},
        Wrong{"SumOfTensors", "y = sym::add(%x, 0)", ".ops[0]: arguments[0]: must be of type int"},
        Wrong{"IntegerAsAnOutput", "y = sym::add(%n, 0)", ".outputs[0]: value 3 is no tensor"}),
    [](const auto& info) { return info.param.name; });

// What the fuzzer of graph files cannot reach, for it has no LibTorch.
TEST(GraphErrorsTest, NoDocumentIsBoundThatDoesNotFit) {
  const std::string lines =
      With(R"(a = aten::convolution(%x, %x, null, [1], [0], [1], false, [0], 1)
      [b, c] = aten::split.Tensor(%a, 2, 0)
      d = aten::index.Tensor(%b, [null, %i])
      e = aten::full([%n, 3], 0.5, float32, null, cpu, false)
      f, _ = aten::nll_loss_forward(%e, %i, null, 1, -100)
      y = aten::cat([%d, %f, %e], 0))");
  const std::string text = graphs::GraphJson({{"fused", lines + "\nloss 0 = y"}});
  const std::vector<std::string> words = {"{\"value\": 0}",
                                          "{\"value\": 3}",
                                          "null",
                                          "7",
                                          "-1",
                                          "{\"bool\": true}",
                                          "{\"float\": \"2.0\"}",
                                          "[]",
                                          "{\"text\": \"a\"}",
                                          "{\"dtype\": \"int8\"}",
                                          "aten::add",
                                          "aten::mul",
                                          "Tensor",
                                          "9223372036854775807"};
  std::mt19937 random(5);
  const auto below = [&](size_t end) {
    return std::uniform_int_distribution<size_t>(0, end - 1)(random);
  };
  int bound = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string changed = text;
    for (size_t changes = 1 + below(3); changes > 0; --changes) {
      // Whole pieces between separators, so that the text stays JSON.
      const size_t begin = changed.find_first_of("[, ", below(changed.size()));
      if (begin == std::string::npos) continue;
      const size_t end = changed.find_first_of("],", begin + 1);
      if (end == std::string::npos) continue;
      changed.replace(begin + 1, end - begin - 1, words[below(words.size())]);
    }
    const auto file = graphs::ParseGraphFile(changed, "g");
    if (!file.ok()) continue;
    const auto graph = Graph::Bind(file->phases.at(graphs::Phase::kFused), graphs::Phase::kFused,
                                   Graph::Options());
    bound += graph.ok();
    if (graph.ok()) continue;
    EXPECT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument) << graph.status();
  }
  EXPECT_GT(bound, 100);
}

class FailingGraphTest : public ::testing::TestWithParam<Wrong> {};

TEST_P(FailingGraphTest, FailsWithThePlace) {
  const auto made =
      Compute(With(GetParam().line), {Ramp({4, 6}), at::tensor({1, 9}, at::kLong), int64_t{0}});
  const std::string name = GetParam().name;
  const bool index = name == "Index" || name == "Dimension";
  EXPECT_EQ(made.status().code(),
            index ? absl::StatusCode::kOutOfRange : absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(made.status().message()),
              HasSubstr(absl::StrCat("g: phases.fused", GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    , FailingGraphTest,
    ::testing::Values(
        Wrong{"Index",
              "u = aten::relu(%x)\ny0 = aten::embedding(%u, %i, -1, false, false)\ny = "
              "aten::add.Tensor(%y0, %n, 1)",
              ".ops[1]: aten::embedding: index out of range"},
        Wrong{"Shape", "y = aten::mm(%x, %x)", ".ops[0]: aten::mm: mat1 and mat2 shapes"},
        Wrong{"Division", "q = sym::floordiv(5, %n)\ny = aten::view(%x, [%q])",
              ".ops[0]: division by zero"},
        Wrong{"Overflow",
              "q = sym::mul(9223372036854775807, 9223372036854775807)\ny = aten::view(%x, [%q])",
              ".ops[0]: the result has more than 64 bits"},
        Wrong{"Dimension", "q = sym::size(%x, 2)\ny = aten::view(%x, [%q])",
              ".ops[0]: Dimension out of range"},
        Wrong{"Length", "[y, z] = aten::split.Tensor(%x, 1, 0)",
              ".ops[0]: aten::split.Tensor: returned 4 tensors, not 2"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace harmony::worker
