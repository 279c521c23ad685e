#include "worker/graphs/attention.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/unit/common/graphs/graph_text.h"
#include "tests/unit/worker/graphs/graph_compute.h"
#include "worker/models/attention_in_pieces.h"
#include "worker/models/fused_attention.h"

namespace harmony::worker {
namespace {

using ::testing::HasSubstr;

struct Case {
  const char* name;
  int64_t samples, heads, key_heads, rows, columns, width;
  bool causal = false, masked = false;
  std::optional<double> scale = std::nullopt;
  at::ScalarType type = at::kFloat;
};

void PrintTo(const Case& from, std::ostream* out) { *out << from.name; }

struct Given {
  at::Tensor query, key, value, gradient;
  std::optional<at::Tensor> mask;
};

at::Tensor Waves(at::IntArrayRef shape, double step, at::ScalarType type) {
  return (Ramp(shape, 0, step * 100).sin() + Ramp(shape, 0, step * 7)).to(type);
}

// Queries and gradients lie as a linear layer leaves them, with the heads behind the rows.
Given Make(const Case& from) {
  const auto heads_behind = [&](double step) {
    return Waves({from.samples, from.rows, from.heads, from.width}, step, from.type)
        .transpose(1, 2);
  };
  const std::vector<int64_t> keys = {from.samples, from.key_heads, from.columns, from.width};
  Given made{heads_behind(0.31), Waves(keys, 0.37, from.type), Waves(keys, 0.23, from.type),
             heads_behind(0.19), std::nullopt};
  if (from.masked) {
    at::Tensor mask = Waves({from.samples, 1, from.rows, from.columns}, 0.41, from.type);
    mask.select(2, from.rows / 2).fill_(-std::numeric_limits<double>::infinity());
    mask.select(3, 0).fill_(-std::numeric_limits<double>::infinity());
    made.mask = mask;
  }
  return made;
}

// Output, logarithms, and the gradients of query, key and value.
std::vector<at::Tensor> Eager(const Case& from, const Given& given) {
  const auto [output, logarithms] = at::_scaled_dot_product_flash_attention_for_cpu(
      given.query, given.key, given.value, 0.0, from.causal, given.mask, from.scale);
  const auto [query, key, value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      given.gradient, given.query, given.key, given.value, output, logarithms, 0.0, from.causal,
      given.mask, from.scale);
  return {output, logarithms, query, key, value};
}

class AttentionTest : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    , AttentionTest,
    ::testing::Values(Case{"Plain", 2, 3, 3, 5, 7, 8}, Case{"Causal", 2, 3, 3, 7, 7, 8, true},
                      Case{"Wide", 2, 3, 3, 7, 5, 8, true, false, 0.5},
                      Case{"Masked", 2, 3, 3, 6, 5, 8, false, true},
                      Case{"MaskedAndCausal", 2, 3, 3, 6, 9, 8, true, true},
                      Case{"Grouped", 2, 4, 2, 6, 5, 8, true, true},
                      Case{"OneKeyForAll", 3, 4, 1, 6, 5, 8},
                      Case{"Narrow", 2, 4, 2, 6, 5, 8, true, false, std::nullopt, at::kBFloat16},
                      Case{"Double", 2, 2, 2, 6, 5, 8, true, false, std::nullopt, at::kDouble}),
    [](const auto& info) { return info.param.name; });

// To the last bit, and lying in memory in the same way.
TEST_P(AttentionTest, IsEagersOnTheCpu) {
  const Case& from = GetParam();
  const Given given = Make(from);
  const std::string rest =
      absl::StrCat(from.causal ? "true" : "false", given.mask.has_value() ? ", %m, " : ", null, ",
                   from.scale.has_value() ? absl::StrFormat("%.3f", *from.scale) : "null", ")\n");
  const auto made = Compute(
      absl::StrCat("q = slot 0\nk = slot 1\nv = slot 2\nm = slot 3\ng = slot 4\n"
                   "o, l = harmony::attention(%q, %k, %v, ",
                   rest, "dq, dk, dv = harmony::attention_backward(%g, %q, %k, %v, %o, %l, ", rest,
                   "gradient 0 = o\ngradient 1 = l\ngradient 2 = dq\ngradient 3 = dk\n"
                   "gradient 4 = dv"),
      {given.query, given.key, given.value, given.mask.value_or(at::zeros({1})), given.gradient});
  ASSERT_TRUE(made.ok()) << made.status();
  const std::vector<at::Tensor> wanted = Eager(from, given);
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_TRUE(at::equal(made->at(static_cast<int>(i)), wanted[i])) << i;
    EXPECT_EQ(made->at(static_cast<int>(i)).strides(), wanted[i].strides()) << i;
  }
}

// What other devices compute, by the CPU: the same numbers but for rounding, lying in the same way.
void ExpectTheSameInPieces(const Case& from) {
  const Given given = Make(from);
  const std::vector<at::Tensor> wanted = Eager(from, given);
  const auto [output, logarithms] =
      AttentionInPieces(given.query, given.key, given.value, from.causal, given.mask, from.scale);
  const auto [query, key, value] =
      AttentionInPiecesBackward(given.gradient, given.query, given.key, given.value, wanted[0],
                                wanted[1], from.causal, given.mask, from.scale);
  const std::vector<at::Tensor> made = {output, logarithms, query, key, value};
  const double rounding = from.type == at::kBFloat16 ? 0.02 : 1e-5;
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_EQ(made[i].sizes(), wanted[i].sizes()) << i;
    EXPECT_EQ(made[i].strides(), wanted[i].strides()) << i;
    EXPECT_EQ(made[i].scalar_type(), wanted[i].scalar_type()) << i;
    const at::Tensor distance = (made[i].to(at::kDouble) - wanted[i].to(at::kDouble)).abs().max();
    EXPECT_LT(distance.item<double>(), rounding * wanted[i].abs().max().item<double>()) << i;
  }
}

TEST_P(AttentionTest, InPiecesIsTheSame) { ExpectTheSameInPieces(GetParam()); }

// Scores of 16 MiB are those of two samples, of three heads, or of 1747 rows.
TEST(AttentionInPiecesTest, WhateverAPieceIs) {
  ExpectTheSameInPieces({"Samples", 5, 2, 1, 1000, 1000, 4, true, true});
  ExpectTheSameInPieces({"Heads", 2, 4, 4, 1100, 1100, 4, true, true});
  ExpectTheSameInPieces({"Rows", 1, 2, 2, 2400, 2400, 4, true, true});
}

TEST(AttentionInPiecesTest, IsBoundOnDevicesThatHaveNoKernel) {
  const auto file = graphs::ParseGraphFile(graphs::GraphJson({{"fused", R"(
      x = slot 0
      o, l = harmony::attention(%x, %x, %x, true, null, null)
      dq, _, _ = harmony::attention_backward(%o, %x, %x, %x, %o, %l, true, null, null)
      loss 0 = dq)"}}),
                                           "g");
  ASSERT_TRUE(file.ok()) << file.status();
  Graph::Options options;
  options.device = c10::Device(c10::kCUDA, 0);
  const auto graph =
      Graph::Bind(file->phases.at(graphs::Phase::kFused), graphs::Phase::kFused, options);
  EXPECT_TRUE(graph.ok()) << graph.status();
}

TEST(AttentionInPiecesTest, WhatDoesNotFitIsRefused) {
  const at::Tensor query = Ramp({2, 3, 5, 8});
  const auto error = [&](const at::Tensor& key, const at::Tensor& value) -> std::string {
    try {
      AttentionInPieces(query, key, value, false, std::nullopt, std::nullopt);
    } catch (const c10::Error& refused) {
      return refused.what_without_backtrace();
    }
    return "";
  };
  const at::Tensor key = Ramp({2, 3, 7, 8});
  EXPECT_EQ(error(key, key), "");
  for (const at::Tensor& wrong :
       {key.slice(0, 0, 1), key.slice(1, 0, 2), key.slice(2, 0, 0), key.slice(3, 0, 7), key[0]}) {
    EXPECT_THAT(error(wrong, wrong), HasSubstr("the query is [2, 3, 5, 8], the key"));
  }
  EXPECT_THAT(error(key, key.slice(2, 0, 6)), HasSubstr("the value [2, 3, 6, 8]"));
}

// Of what a GPU has that no test runs on, when it is chosen: the shapes and types that LibTorch's
// kernels know.
TEST(FusedAttentionTest, IsChosenForWhatTheKernelsKnow) {
  const auto kernel = [](Case from, int multiprocessors = 132) {
    const Given given = Make(from);
    return KernelFor(given.query, given.key, given.value, from.causal, given.mask, multiprocessors);
  };
  const Case narrow{"", 2, 4, 4, 129, 129, 16, true, false, std::nullopt, at::kBFloat16};
  const Case wide{"", 2, 4, 4, 128, 128, 16, true};
  EXPECT_EQ(kernel(narrow), FusedKernel::kFlash);
  EXPECT_EQ(kernel(wide), FusedKernel::kMemoryEfficient);

  const auto changed = [](Case from, const std::function<void(Case&)>& change) {
    change(from);
    return from;
  };
  EXPECT_EQ(kernel(changed(narrow, [](Case& c) { c.key_heads = 2; })), FusedKernel::kFlash);
  EXPECT_EQ(kernel(changed(narrow, [](Case& c) { c.width = 12; })), FusedKernel::kNone);
  EXPECT_EQ(kernel(changed(narrow, [](Case& c) { c.width = 208; })), FusedKernel::kNone);
  EXPECT_EQ(kernel(changed(narrow, [](Case& c) { c.width = 264; })), FusedKernel::kNone);
  const at::Tensor many =
      at::empty({1, 65536, 128, 16}, at::TensorOptions(at::kMeta).dtype(at::kBFloat16));
  EXPECT_EQ(KernelFor(many, many, many, true, std::nullopt, 132), FusedKernel::kNone);
  EXPECT_EQ(kernel(changed(narrow, [](Case& c) { c.masked = true; })), FusedKernel::kNone);
  // Rows see the columns up to their own: the kernel's mask is another one where there are more.
  EXPECT_EQ(kernel(changed(narrow, [](Case& c) { c.columns = 139; })), FusedKernel::kNone);
  EXPECT_EQ(kernel(changed(narrow,
                           [](Case& c) {
                             c.columns = 9;
                             c.causal = false;
                           })),
            FusedKernel::kFlash);
  EXPECT_EQ(kernel(changed(wide, [](Case& c) { c.columns = 9; })), FusedKernel::kMemoryEfficient);
  EXPECT_EQ(kernel(changed(wide, [](Case& c) { c.rows = 129; })), FusedKernel::kNone);
  // Few rows are as fast in pieces.
  EXPECT_EQ(kernel(changed(wide, [](Case& c) { c.rows = 96; })), FusedKernel::kNone);
  EXPECT_EQ(kernel(changed(narrow, [](Case& c) { c.rows = c.columns = 127; })), FusedKernel::kNone);
  EXPECT_EQ(kernel(changed(wide, [](Case& c) { c.width = 6; })), FusedKernel::kNone);
  EXPECT_EQ(kernel(changed(wide, [](Case& c) { c.key_heads = 2; })), FusedKernel::kNone);
  EXPECT_EQ(kernel(changed(wide, [](Case& c) { c.masked = true; })), FusedKernel::kNone);
  EXPECT_EQ(kernel(changed(wide, [](Case& c) { c.type = at::kDouble; })), FusedKernel::kNone);
  // More multiprocessors than plans count on, or none that anybody has named.
  EXPECT_EQ(kernel(narrow, 192), FusedKernel::kFlash);
  EXPECT_EQ(kernel(narrow, 193), FusedKernel::kNone);
  EXPECT_EQ(kernel(wide, 0), FusedKernel::kNone);
}

}  // namespace
}  // namespace harmony::worker
