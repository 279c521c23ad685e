#include "worker/optimizer/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/trim_block.h"
#include "tests/support/update_block.h"

namespace harmony::worker {
namespace {

using testing_support::UpdateBlock;

using Floats = std::vector<float>;

Floats RandomFloats(int64_t count, uint64_t seed, float scale, bool positive = false) {
  Floats values(static_cast<size_t>(count));
  std::minstd_rand random(static_cast<unsigned>(seed));  // quick also under the sanitizers
  for (float& value : values) {
    const float x = (static_cast<float>(random()) * 0x1p-30f - 1.0f) * 2 * scale;
    value = positive ? x * x : x;
  }
  return values;
}

// Tensors of odd sizes, with and without weight decay, each on a slot boundary; nothing follows the
// last one.
model::ParamBlock MakeBlock(const std::vector<int64_t>& sizes) {
  model::ParamBlock block;
  block.name = "block";
  for (size_t i = 0; i < sizes.size(); ++i) {
    model::TensorSpec tensor;
    tensor.name = absl::StrCat("t", i);
    tensor.shape = {sizes[i]};
    tensor.weight_decay = i % 2 == 0;
    model::AddTensor(block, std::move(tensor));
  }
  testing_support::TrimBlock(block);
  return block;
}

struct Buffers {
  Floats w, m, v, g, g2;
  std::vector<Floats> more;  // gradients, for sums of up to eight
  explicit Buffers(int64_t n)
      : w(RandomFloats(n, 1, 0.1f)),
        m(RandomFloats(n, 2, 0.01f)),
        v(RandomFloats(n, 3, 0.01f, true)),
        g(RandomFloats(n, 4, 0.3f)),
        g2(RandomFloats(n, 5, 0.3f)) {
    for (uint64_t i = 0; i < 6; ++i) more.push_back(RandomFloats(n, 6 + i, 0.3f));
  }
  BlockState state() { return {w.data(), m.data(), v.data()}; }
  // The first `count` of the gradients, at most eight.
  BlockGradient gradient(int count) const {
    BlockGradient all = {g.data(), g2.data()};
    for (const Floats& one : more) all.push_back(one.data());
    all.resize(static_cast<size_t>(count));
    return all;
  }
};

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

const std::vector<std::vector<int64_t>> kShapes = {
    {1},          {15},   {16}, {17, 1, 31}, {1000, 7, 513}, {48, 48, 48, 5}, {300000, 3, 262143},
    {262144, 16}, {70000}};

// How many parts a gradient has. Of a block of several pieces what is tested is how it is divided,
// which does not depend on that.
std::vector<int> GradientCounts(const model::ParamBlock& block) {
  return block.elements() > 50000 ? std::vector<int>{2} : std::vector<int>{1, 2, 3, 4, 8};
}

class IsaTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!IsaSupported(GetParam())) GTEST_SKIP() << "not on this machine";
  }
};

TEST_P(IsaTest, AdamWHasTheBitsOfTheReference) {
  ThreadPool one(1), three(3);
  for (const auto& shape : kShapes) {
    const model::ParamBlock block = MakeBlock(shape);
    for (const int count : GradientCounts(block)) {
      for (const double beta1 : {0.9, 0.3}) {
        Buffers expected(block.elements());
        Buffers actual = expected;
        const OptimizerSettings settings{job::OptimizerKind::kAdamW, 0.1, beta1, 0.95, 1e-8};
        for (int64_t step = 1; step <= 3; ++step) {
          const StepHyper hyper{step, 1e-3 / static_cast<double>(step), step == 2 ? 0.37 : 1.0};
          UpdateBlock(block, settings, hyper, expected.state(), expected.gradient(count), one,
                      Isa::kScalar);
          UpdateBlock(block, settings, hyper, actual.state(), expected.gradient(count), three,
                      GetParam());
        }
        EXPECT_TRUE(SameBits(expected.w, actual.w)) << block.elements() << ", " << count;
        EXPECT_TRUE(SameBits(expected.m, actual.m));
        EXPECT_TRUE(SameBits(expected.v, actual.v));
      }
    }
  }
}

TEST_P(IsaTest, SgdHasTheBitsOfTheReference) {
  ThreadPool one(1), three(3);
  for (const auto& shape : kShapes) {
    const model::ParamBlock block = MakeBlock(shape);
    for (const int count : GradientCounts(block)) {
      Buffers expected(block.elements());
      Buffers actual = expected;
      const OptimizerSettings settings{job::OptimizerKind::kSgd, 0.1, 0, 0, 0};
      const BlockGradient gradient = expected.gradient(count);
      UpdateBlock(block, settings, {1, 0.1, 0.5}, {expected.w.data(), nullptr, nullptr}, gradient,
                  one, Isa::kScalar);
      UpdateBlock(block, settings, {1, 0.1, 0.5}, {actual.w.data(), nullptr, nullptr}, gradient,
                  three, GetParam());
      EXPECT_TRUE(SameBits(expected.w, actual.w)) << block.elements() << ", " << count;
    }
  }
}

TEST_P(IsaTest, MomentumHasTheBitsOfTheReference) {
  ThreadPool one(1), three(3);
  for (const auto& shape : kShapes) {
    const model::ParamBlock block = MakeBlock(shape);
    for (const bool nesterov : {false, true}) {
      Buffers expected(block.elements());
      Buffers actual = expected;
      OptimizerSettings settings{job::OptimizerKind::kSgd, 0.1, 0, 0, 0};
      settings.momentum = 0.9;
      settings.nesterov = nesterov;
      const BlockGradient gradient = expected.gradient(2);
      for (int64_t step = 1; step <= 3; ++step) {
        UpdateBlock(block, settings, {step, 0.1, 0.5},
                    {expected.w.data(), expected.m.data(), nullptr}, gradient, one, Isa::kScalar);
        UpdateBlock(block, settings, {step, 0.1, 0.5}, {actual.w.data(), actual.m.data(), nullptr},
                    gradient, three, GetParam());
      }
      EXPECT_TRUE(SameBits(expected.w, actual.w)) << block.elements() << ", " << nesterov;
      EXPECT_TRUE(SameBits(expected.m, actual.m));
    }
  }
}

TEST_P(IsaTest, GradientsOfReferencesAreAddedFromTheFirstToTheLast) {
  ThreadPool pool(2);
  const OptimizerSettings settings{job::OptimizerKind::kSgd, 0, 0, 0, 0};
  for (const auto& shape : kShapes) {
    const model::ParamBlock one = MakeBlock(shape);
    model::ParamBlock block = one;
    for (const int count : GradientCounts(one)) {
      block.references.resize(static_cast<size_t>(count));
      Buffers buffers(block.elements());
      Floats summed = buffers.g, expected = buffers.w;
      const BlockGradient all = buffers.gradient(count);
      for (size_t j = 1; j < all.size(); ++j) {
        const auto* const term = static_cast<const float*>(all[j]);
        for (size_t i = 0; i < summed.size(); ++i) summed[i] = summed[i] + term[i];
      }
      UpdateBlock(one, settings, {1, 0.1, 0.5}, {expected.data(), nullptr, nullptr},
                  {summed.data()}, pool, Isa::kScalar);
      UpdateBlock(block, settings, {1, 0.1, 0.5}, {buffers.w.data(), nullptr, nullptr}, all, pool,
                  GetParam());
      EXPECT_TRUE(SameBits(expected, buffers.w)) << block.elements() << ", " << count;
      EXPECT_EQ(BlockSquaredNorm(block, all, pool, GetParam()),
                BlockSquaredNorm(one, {summed.data()}, pool, Isa::kScalar));
    }
  }
}

TEST_P(IsaTest, NormHasTheBitsOfTheReference) {
  ThreadPool one(1), three(3);
  for (const auto& shape : kShapes) {
    const model::ParamBlock block = MakeBlock(shape);
    const Buffers buffers(block.elements());
    for (const int count : {1, 2}) {
      const BlockGradient gradient = buffers.gradient(count);
      const double expected = BlockSquaredNorm(block, gradient, one, Isa::kScalar);
      const double actual = BlockSquaredNorm(block, gradient, three, GetParam());
      EXPECT_EQ(expected, actual) << block.elements();
      double plain = 0;
      for (const model::TensorSpec& tensor : block.tensors) {
        for (int64_t i = tensor.weight.first_element();
             i < tensor.weight.first_element() + tensor.elements; ++i) {
          const size_t k = static_cast<size_t>(i);
          const double g = count == 2 ? buffers.g[k] + buffers.g2[k] : buffers.g[k];
          plain += g * g;
        }
      }
      EXPECT_NEAR(actual, plain, 1e-9 * plain);
    }
  }
}

TEST_P(IsaTest, NonFiniteGradientsShowInTheNorm) {
  ThreadPool pool(1);
  const model::ParamBlock block = MakeBlock({100, 40});
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const size_t at : {0u, 50u, 99u, 128u, 167u}) {  // ends of both tensors
      Buffers buffers(block.elements());
      buffers.g[at] = bad;
      EXPECT_FALSE(std::isfinite(BlockSquaredNorm(block, {buffers.g.data()}, pool, GetParam())));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, IsaTest, ::testing::Values(Isa::kScalar, Isa::kAvx2, Isa::kAvx512),
                         [](const auto& info) { return std::string(ToString(info.param)); });

// Against the textbook formula in double, to catch a reference that is wrong everywhere.
TEST(OptimizerTest, AdamWFollowsTheFormula) {
  ThreadPool pool(2);
  const model::ParamBlock block = MakeBlock({500, 77});
  Buffers b(block.elements());
  std::fill(b.m.begin(), b.m.end(), 0.0f);
  std::fill(b.v.begin(), b.v.end(), 0.0f);
  const size_t n = static_cast<size_t>(block.elements());
  std::vector<double> w(b.w.begin(), b.w.end()), m(n), v(n);
  const OptimizerSettings s{job::OptimizerKind::kAdamW, 0.1, 0.9, 0.95, 1e-8};
  for (int64_t step = 1; step <= 10; ++step) {
    b.g = RandomFloats(block.elements(), 100 + static_cast<uint64_t>(step), 0.3f);
    const StepHyper h{step, 1e-2, 0.5};
    UpdateBlock(block, s, h, b.state(), {b.g.data(), b.g2.data()}, pool);
    for (const model::TensorSpec& tensor : block.tensors) {
      for (int64_t e = tensor.weight.first_element();
           e < tensor.weight.first_element() + tensor.elements; ++e) {
        const size_t i = static_cast<size_t>(e);
        const double g = (double{b.g[i]} + double{b.g2[i]}) * 0.5;
        if (tensor.weight_decay) w[i] *= 1 - h.learning_rate * s.weight_decay;
        m[i] = s.beta1 * m[i] + (1 - s.beta1) * g;
        v[i] = s.beta2 * v[i] + (1 - s.beta2) * g * g;
        const double c1 = 1 - std::pow(s.beta1, static_cast<double>(step));
        const double c2 = 1 - std::pow(s.beta2, static_cast<double>(step));
        w[i] -= h.learning_rate * (m[i] / c1) / (std::sqrt(v[i] / c2) + s.epsilon);
      }
    }
  }
  for (const model::TensorSpec& tensor : block.tensors) {
    for (int64_t e = tensor.weight.first_element();
         e < tensor.weight.first_element() + tensor.elements; ++e) {
      const size_t i = static_cast<size_t>(e);
      EXPECT_NEAR(b.w[i], w[i], 2e-6) << i;
    }
  }
}

// A block with rules: its tensors differ in decay and rate, and two that follow each other do not.
model::ParamBlock MakeRuledBlock() {
  model::ParamBlock block = MakeBlock({500, 77, 31, 262143, 40, 16});
  const std::vector<std::optional<double>> decays = {std::nullopt, 0.02, 0.02, 0.0, 0.3, {}};
  const std::vector<double> factors = {0.1, 3, 3, 1, 0, 0.7};
  for (size_t i = 0; i < block.tensors.size(); ++i) {
    block.tensors[i].own_weight_decay = decays[i];
    block.tensors[i].learning_rate_factor = factors[i];
  }
  return block;
}

// A step, tensor by tensor, in place: each by the kernel with constants that are formed here, in
// double, as torch.optim forms a group's. Without rules these are those of before there were any.
void UpdateTensorByTensor(const model::ParamBlock& block, const OptimizerSettings& s,
                          const StepHyper& h, const BlockState& state,
                          const BlockGradient& gradient) {
  const double step = static_cast<double>(h.step);
  for (const model::TensorSpec& tensor : block.tensors) {
    UpdateRange range;
    range.w = static_cast<float*>(state.weights);
    range.m = state.m;
    range.v = state.v;
    range.gradients = TermsOf(block, gradient);
    range.begin = tensor.weight.first_element();
    range.end = range.begin + tensor.elements;
    double lr = h.learning_rate;
    if (tensor.learning_rate_factor != 1) lr = lr * tensor.learning_rate_factor;
    double decay = tensor.weight_decay ? s.weight_decay : 0;
    if (tensor.own_weight_decay.has_value()) decay = *tensor.own_weight_decay;
    const auto clip = static_cast<float>(h.clip_coefficient);
    if (s.kind == job::OptimizerKind::kSgd) {
      KernelsFor(Isa::kScalar)
          .sgd(range, {clip, static_cast<float>(decay), static_cast<float>(lr),
                       static_cast<float>(s.momentum), s.nesterov});
      continue;
    }
    AdamWConstants c{clip};
    c.decay = decay == 0 ? 1.0f : static_cast<float>(1.0 - lr * decay);
    c.lerp = static_cast<float>(1.0 - s.beta1);
    c.beta2 = static_cast<float>(s.beta2);
    c.one_minus_beta2 = static_cast<float>(1.0 - s.beta2);
    c.step_size = static_cast<float>(lr / (1.0 - std::pow(s.beta1, step)));
    c.bias2_sqrt = static_cast<float>(std::sqrt(1.0 - std::pow(s.beta2, step)));
    c.epsilon = static_cast<float>(s.epsilon);
    KernelsFor(Isa::kScalar).adamw(range, c);
  }
}

TEST(RulesTest, EachTensorHasItsOwnRateAndDecayToTheBit) {
  OptimizerSettings momentum{job::OptimizerKind::kSgd, 0.1, 0, 0, 0};
  momentum.momentum = 0.9;
  const OptimizerSettings adamw{job::OptimizerKind::kAdamW, 0.1, 0.9, 0.95, 1e-8};
  ThreadPool pool(2);
  for (const OptimizerSettings& settings : {adamw, momentum}) {
    for (const model::ParamBlock& block : {MakeRuledBlock(), MakeBlock({500, 77, 31, 262143})}) {
      Buffers expected(block.elements());
      Buffers actual = expected;
      const BlockGradient gradient = expected.gradient(2);
      for (int64_t step = 1; step <= 3; ++step) {
        const StepHyper hyper{step, 1e-2, step == 2 ? 0.37 : 1.0};
        BlockState theirs = expected.state(), ours = actual.state();
        if (settings.kind == job::OptimizerKind::kSgd) theirs.v = ours.v = nullptr;
        UpdateTensorByTensor(block, settings, hyper, theirs, gradient);
        UpdateBlock(block, settings, hyper, ours, gradient, pool);
      }
      for (const model::TensorSpec& tensor : block.tensors) {
        const auto at = static_cast<size_t>(tensor.weight.first_element());
        const size_t bytes = static_cast<size_t>(tensor.elements) * sizeof(float);
        EXPECT_EQ(std::memcmp(&expected.w[at], &actual.w[at], bytes), 0) << tensor.name;
        EXPECT_EQ(std::memcmp(&expected.m[at], &actual.m[at], bytes), 0) << tensor.name;
        EXPECT_EQ(std::memcmp(&expected.v[at], &actual.v[at], bytes), 0) << tensor.name;
      }
    }
  }
}

TEST(RulesTest, AFactorOfZeroLeavesAWeightButItsMomentsGoOn) {
  model::ParamBlock block = MakeBlock({100});
  block.tensors[0].learning_rate_factor = 0;
  ThreadPool pool(1);
  Buffers b(block.elements());
  const Buffers before = b;
  UpdateBlock(block, {job::OptimizerKind::kAdamW, 0.1, 0.9, 0.95, 1e-8}, {1, 1e-2, 1}, b.state(),
              b.gradient(1), pool);
  EXPECT_TRUE(SameBits(b.w, before.w));
  EXPECT_NE(b.m[5], before.m[5]);
  EXPECT_NE(b.v[5], before.v[5]);
}

TEST(RulesTest, ARuleThatSaysWhatIsSoAnywayChangesNoBit) {
  const model::ParamBlock plain = MakeBlock({1000, 7, 513});
  model::ParamBlock ruled = plain;
  const OptimizerSettings settings{job::OptimizerKind::kAdamW, 0.1, 0.9, 0.95, 1e-8};
  for (model::TensorSpec& tensor : ruled.tensors) {
    tensor.own_weight_decay = tensor.weight_decay ? settings.weight_decay : 0;
  }
  ThreadPool pool(1);
  Buffers a(plain.elements()), b = a;
  UpdateBlock(plain, settings, {1, 1e-2, 1}, a.state(), a.gradient(1), pool);
  UpdateBlock(ruled, settings, {1, 1e-2, 1}, b.state(), a.gradient(1), pool);
  EXPECT_TRUE(SameBits(a.w, b.w));
}

// The same against the textbook formula in double.
TEST(RulesTest, AdamWWithRulesFollowsTheFormula) {
  ThreadPool pool(2);
  const model::ParamBlock block = MakeRuledBlock();
  Buffers b(block.elements());
  std::fill(b.m.begin(), b.m.end(), 0.0f);
  std::fill(b.v.begin(), b.v.end(), 0.0f);
  const Floats start = b.w;
  for (int64_t step = 1; step <= 5; ++step) {
    UpdateBlock(block, {job::OptimizerKind::kAdamW, 0.1, 0.9, 0.95, 1e-8}, {step, 1e-2, 1},
                b.state(), b.gradient(1), pool);
  }
  for (const model::TensorSpec& tensor : block.tensors) {
    const double lr = 1e-2 * tensor.learning_rate_factor;
    const double decay = tensor.own_weight_decay.value_or(tensor.weight_decay ? 0.1 : 0);
    for (int64_t i = 0; i < std::min<int64_t>(tensor.elements, 100); ++i) {
      const auto k = static_cast<size_t>(tensor.weight.first_element() + i);
      // With the same gradient in each step, corrected moments are the gradient and its square.
      const double g = b.g[k];
      double w = start[k];
      for (int step = 0; step < 5; ++step) {
        w = w * (1 - lr * decay) - lr * g / (std::sqrt(g * g) + 1e-8);
      }
      ASSERT_NEAR(b.w[k], w, 2e-6) << tensor.name << " " << i;
    }
  }
}

TEST(OptimizerTest, ClipCoefficientIsPyTorchs) {
  EXPECT_EQ(ClipCoefficient(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(ClipCoefficient(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  const double squares[] = {9.0, 16.0};
  EXPECT_EQ(GradientNorm(squares), 5.0);
}

TEST(ThreadPoolTest, EveryIndexOnceWhateverTheThreads) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (const int64_t count : {0, 1, 2, 3, 100}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      for (int round = 0; round < 20; ++round) {
        pool.ParallelFor(count, [&](int64_t i) { seen[static_cast<size_t>(i)].fetch_add(1); });
      }
      for (const auto& n : seen) EXPECT_EQ(n.load(), 20);
    }
  }
}

// As torch.optim.SGD says, in double.
TEST(OptimizerTest, MomentumFollowsTheFormula) {
  for (const bool nesterov : {false, true}) {
    ThreadPool pool(2);
    const model::ParamBlock block = MakeBlock({500, 77});
    Buffers b(block.elements());
    std::fill(b.m.begin(), b.m.end(), 0.0f);
    const auto n = static_cast<size_t>(block.elements());
    std::vector<double> w(b.w.begin(), b.w.end()), m(n);
    OptimizerSettings settings{job::OptimizerKind::kSgd, 0.1, 0, 0, 0};
    settings.momentum = 0.9;
    settings.nesterov = nesterov;
    for (int64_t step = 1; step <= 10; ++step) {
      b.g = RandomFloats(block.elements(), 100 + static_cast<uint64_t>(step), 0.3f);
      UpdateBlock(block, settings, {step, 1e-2, 0.5}, {b.w.data(), b.m.data(), nullptr},
                  {b.g.data()}, pool);
      for (const model::TensorSpec& tensor : block.tensors) {
        const double decay = tensor.weight_decay ? 0.1 : 0;
        for (int64_t i = 0; i < tensor.elements; ++i) {
          const auto k = static_cast<size_t>(tensor.weight.first_element() + i);
          const double g = 0.5 * static_cast<double>(b.g[k]) + decay * w[k];
          m[k] = 0.9 * m[k] + g;
          w[k] -= 1e-2 * (nesterov ? g + 0.9 * m[k] : m[k]);
          ASSERT_NEAR(b.w[k], w[k], 1e-5) << k << " in step " << step;
        }
      }
    }
  }
}

TEST(RolesTest, StatisticsAreReplacedAndFixedTensorsStayAsTheyAre) {
  model::ParamBlock block;
  const auto add = [&](const char* name, model::TensorRole role, DType dtype, int64_t elements) {
    model::TensorSpec tensor;
    tensor.name = name;
    tensor.role = role;
    tensor.shape = {elements};
    tensor.weight.dtype = tensor.gradient.dtype = tensor.moment.dtype = dtype;
    model::AddTensor(block, std::move(tensor));
  };
  add("trained", model::TensorRole::kTrained, DType::kF32, 100);
  add("mean", model::TensorRole::kStatistic, DType::kF32, 10);
  add("count", model::TensorRole::kStatistic, DType::kI64, 1);
  add("mask", model::TensorRole::kFixed, DType::kF32, 50);
  const auto weights = static_cast<size_t>(block.weight_bytes.count() / 4);
  Floats w = RandomFloats(static_cast<int64_t>(weights), 1, 0.5f);
  const Floats before = w;
  Buffers other(block.elements());
  // A count is bits that no arithmetic on floats may touch.
  const int64_t count = 0x7fc000007fc00001;
  std::memcpy(&other.g[static_cast<size_t>(block.tensors[2].gradient.first_element()) * 2], &count,
              sizeof(count));
  ThreadPool pool(2);
  for (const job::OptimizerKind kind : {job::OptimizerKind::kSgd, job::OptimizerKind::kAdamW}) {
    w = before;
    OptimizerSettings settings;
    settings.kind = kind;
    BlockState state = other.state();
    state.weights = w.data();
    UpdateBlock(block, settings, {.step = 1, .learning_rate = 0.1}, state, other.gradient(1), pool);
    EXPECT_NE(w[5], before[5]);
    const auto mean = static_cast<size_t>(block.tensors[1].weight.first_element());
    EXPECT_EQ(std::memcmp(&w[mean], &other.g[mean], 10 * sizeof(float)), 0);
    int64_t counted = 0;
    std::memcpy(&counted,
                reinterpret_cast<const char*>(w.data()) + block.tensors[2].weight.offset.count(),
                sizeof(counted));
    EXPECT_EQ(counted, count);
    const auto mask = static_cast<size_t>(block.tensors[3].weight.first_element());
    EXPECT_EQ(std::memcmp(&w[mask], &before[mask], 50 * sizeof(float)), 0);
  }
  double trained = 0;
  for (size_t i = 0; i < 100; ++i) trained += static_cast<double>(other.g[i]) * other.g[i];
  EXPECT_NEAR(BlockSquaredNorm(block, other.gradient(1), pool), trained, 1e-9 * trained);
}

}  // namespace
}  // namespace harmony::worker
