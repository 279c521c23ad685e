// Gradients of bf16: an update does with them what it does with the same numbers in fp32.

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/io/float_convert.h"
#include "tests/support/update_block.h"
#include "worker/optimizer/optimizer.h"

namespace harmony::worker {
namespace {

using testing_support::UpdateBlock;

using Floats = std::vector<float>;

// Two types, and a statistic among them; those of bf16 begin at an odd slot. The largest tensor of
// them has so many elements.
model::ModelSpec MakeModel(DType gradient, int64_t largest) {
  model::ModelSpec model;
  model::ParamBlock block;
  int number = 0;
  for (const int64_t elements : std::vector<int64_t>{1000, 100, 3, largest, 40, 128, 129, 65}) {
    model::TensorSpec tensor;
    tensor.shape = {elements};
    tensor.weight_decay = number % 2 == 0;
    if (number == 2) tensor.role = model::TensorRole::kStatistic;
    tensor.weight.dtype = number > 2 && number != 6 ? DType::kBF16 : DType::kF32;
    model::AddTensor(block, std::move(tensor));
    ++number;
  }
  model::AddBlock(model, std::move(block));
  model::StoreGradientsAs(gradient, model);
  return model;
}

// The same numbers, which bf16 has, in the form that the block says.
std::vector<std::byte> GradientFor(const model::ParamBlock& block, uint64_t seed) {
  std::vector<std::byte> bytes(static_cast<size_t>(block.gradient_bytes.count()));
  for (const model::TensorSpec& tensor : block.tensors) {
    for (int64_t i = 0; i < tensor.elements; ++i) {
      const uint16_t narrow =
          io::Bf16FromFloat(PhiloxNormal(seed, static_cast<uint64_t>(i), 0)[0] * 0.1f);
      const float wide = io::FloatFromBf16(narrow);
      const bool is_narrow = tensor.gradient.dtype == DType::kBF16;
      const size_t size = is_narrow ? sizeof(narrow) : sizeof(wide);
      std::memcpy(bytes.data() + tensor.gradient.offset.count() + i * static_cast<int64_t>(size),
                  is_narrow ? static_cast<const void*>(&narrow) : &wide, size);
    }
  }
  return bytes;
}

struct State {
  explicit State(const model::ParamBlock& block)
      : w(static_cast<size_t>(block.weight_bytes.count() / 4)),
        m(static_cast<size_t>(block.elements())),
        v(m),
        masters(m) {
    for (const model::TensorSpec& tensor : block.tensors) {
      for (int64_t i = 0; i < tensor.elements; ++i) {
        masters[static_cast<size_t>(tensor.moment.first_element() + i)] =
            PhiloxNormal(99, static_cast<uint64_t>(i), 0)[0];
      }
    }
    RoundMasters(block, buffers());
  }
  BlockState buffers() { return {w.data(), m.data(), v.data(), masters.data()}; }
  bool operator==(const State&) const = default;

  Floats w, m, v, masters;
};

// So many parts, in a block with a tensor of that size.
void ExpectUpdatesOfTheSameNumbers(Isa isa, bool adamw, uint64_t parts, int64_t largest) {
  SCOPED_TRACE(absl::StrCat(ToString(isa), ", adamw ", adamw, ", parts ", parts));
  model::ModelSpec narrow = MakeModel(DType::kBF16, largest);
  model::ModelSpec wide = MakeModel(DType::kF32, largest);
  EXPECT_LT(narrow.blocks[0].gradient_bytes, wide.blocks[0].gradient_bytes);
  ThreadPool pool(2);
  OptimizerSettings settings;
  settings.kind = adamw ? job::OptimizerKind::kAdamW : job::OptimizerKind::kSgd;
  settings.momentum = adamw ? 0 : 0.9;
  settings.weight_decay = 0.1;
  narrow.blocks[0].references.resize(parts);
  wide.blocks[0].references.resize(parts);
  std::vector<std::vector<std::byte>> narrow_terms, wide_terms;
  BlockGradient a, b;
  for (uint64_t part = 0; part < parts; ++part) {
    narrow_terms.push_back(GradientFor(narrow.blocks[0], part));
    wide_terms.push_back(GradientFor(wide.blocks[0], part));
  }
  for (uint64_t part = 0; part < parts; ++part) {
    a.push_back(narrow_terms[part].data());
    b.push_back(wide_terms[part].data());
  }
  State expected(wide.blocks[0]), actual(narrow.blocks[0]);
  for (int64_t step = 1; step <= 2; ++step) {
    const StepHyper hyper{step, 1e-2, 0.7};
    UpdateBlock(narrow.blocks[0], settings, hyper, actual.buffers(), a, pool, isa);
    UpdateBlock(wide.blocks[0], settings, hyper, expected.buffers(), b, pool, Isa::kScalar);
  }
  EXPECT_TRUE(actual == expected);
  EXPECT_EQ(BlockSquaredNorm(narrow.blocks[0], a, pool, isa),
            BlockSquaredNorm(wide.blocks[0], b, pool, Isa::kScalar));
}

TEST(NarrowGradientTest, UpdatesAreThoseOfTheSameNumbersInFp32) {
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (!IsaSupported(isa)) continue;
    for (const bool adamw : {true, false}) {
      for (const uint64_t parts : {1u, 2u, 5u}) {
        ExpectUpdatesOfTheSameNumbers(isa, adamw, parts, 3001);
      }
      ExpectUpdatesOfTheSameNumbers(isa, adamw, 2, 300'001);  // of several pieces
    }
  }
}

// Parts of a gradient are added up pairwise, and what leaves devices as bf16 is rounded after each
// addition, so that it does not matter which of the sums a device made.
TEST(NarrowGradientTest, PartsAreAddedUpPairwise) {
  constexpr int kElements = 133, kParts = 8;
  std::vector<std::vector<float>> terms;
  for (uint64_t part = 0; part < kParts; ++part) {
    std::vector<float>& term = terms.emplace_back(kElements);
    for (uint64_t i = 0; i < kElements; ++i) {
      term[i] = io::FloatFromBf16(io::Bf16FromFloat(PhiloxNormal(part, i, 0)[0]));
    }
  }
  const auto rounded = [](bool narrow, float x) {
    return narrow ? io::FloatFromBf16(io::Bf16FromFloat(x)) : x;
  };
  for (const bool narrow : {false, true}) {
    double expected = 0;
    for (size_t i = 0; i < kElements; ++i) {
      const auto pair = [&](float a, float b) { return rounded(narrow, a + b); };
      const auto four = [&](size_t at) {
        return pair(pair(terms[at][i], terms[at + 1][i]), pair(terms[at + 2][i], terms[at + 3][i]));
      };
      const double sum = pair(four(0), four(4));
      expected += sum * sum;
    }
    std::vector<std::vector<uint16_t>> narrow_terms;
    std::vector<const void*> data;
    for (const std::vector<float>& term : terms) {
      std::vector<uint16_t>& copy = narrow_terms.emplace_back();
      for (const float x : term) copy.push_back(io::Bf16FromFloat(x));
      data.push_back(narrow ? static_cast<const void*>(copy.data()) : term.data());
    }
    GradientTerms all;
    all.data = data.data();
    all.parts = kParts;
    all.bf16 = narrow;
    const double scalar = KernelsFor(Isa::kScalar).squared_norm(all, 0, kElements);
    EXPECT_NEAR(scalar, expected, 1e-9 * expected);
    for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
      if (!IsaSupported(isa)) continue;
      EXPECT_EQ(KernelsFor(isa).squared_norm(all, 0, kElements), scalar) << ToString(isa);
    }
  }
}

}  // namespace
}  // namespace harmony::worker
