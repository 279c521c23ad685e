#include "worker/models/gemm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <tuple>
#include <vector>

#include "common/base/random.h"
#include "worker/models/gemm_kernel.h"

namespace harmony::worker {
namespace {

at::Tensor Product(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor c = at::empty({a.size(0), b.size(1)}, a.options());
  MatMul(c, a, b, /*accumulate=*/false);
  return c;
}

at::Tensor Random(int64_t rows, int64_t columns, uint64_t seed, bool transposed) {
  at::Tensor matrix =
      transposed ? at::empty({columns, rows}, at::kFloat) : at::empty({rows, columns}, at::kFloat);
  CounterRandom random(seed);
  float* data = matrix.mutable_data_ptr<float>();
  for (int64_t i = 0; i < matrix.numel(); ++i) {
    data[i] = static_cast<float>(random.NextDouble() * 2 - 1);
  }
  return transposed ? matrix.t() : matrix;
}

float At(const at::Tensor& matrix, int64_t i, int64_t j) {
  return matrix.const_data_ptr<float>()[i * matrix.stride(0) + j * matrix.stride(1)];
}

// m, k, n; a transposed; b transposed.
class GemmTest : public ::testing::TestWithParam<
                     std::tuple<std::tuple<int64_t, int64_t, int64_t>, bool, bool>> {};

TEST_P(GemmTest, MatchesTheSumInDoubleAndIgnoresTheNumberOfThreads) {
  const auto [shape, a_transposed, b_transposed] = GetParam();
  const auto [m, k, n] = shape;
  const at::Tensor a = Random(m, k, 1, a_transposed);
  const at::Tensor b = Random(k, n, 2, b_transposed);
  const at::Tensor start = Random(m, n, 3, false);
  std::vector<at::Tensor> results;
  for (int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    at::Tensor c = start.clone();
    MatMul(c, a, b, /*accumulate=*/true);
    results.push_back(c);
  }
  at::set_num_threads(1);
  const at::Tensor fresh = Product(a, b);
  const double tolerance = 1e-6 * std::sqrt(static_cast<double>(k)) + 1e-6;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) sum += static_cast<double>(At(a, i, l)) * At(b, l, j);
      ASSERT_NEAR(At(fresh, i, j), sum, tolerance) << i << ", " << j;
      ASSERT_NEAR(At(results[0], i, j), sum + At(start, i, j), tolerance) << i << ", " << j;
    }
  }
  if (!gemm::Avx512Supported()) return;  // ATen's own product promises less
  for (const at::Tensor& other : results) {
    EXPECT_EQ(0, std::memcmp(results[0].const_data_ptr<float>(), other.const_data_ptr<float>(),
                             sizeof(float) * m * n));
  }
}

// Of bf16: sums are fp32, so the result is the exact one within a rounding.
class Bf16GemmTest : public ::testing::TestWithParam<Bf16Products> {};

TEST_P(Bf16GemmTest, IsTheProductRoundedOnce) {
  for (const bool transposed : {false, true}) {
    for (const auto& [m, k, n] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
             {1, 1, 1}, {13, 7, 51}, {300, 70, 97}, {70, 2100, 65}, {5, 20, 4200}}) {
      const at::Tensor a = Random(m, k, 1, transposed).to(at::kBFloat16);
      const at::Tensor b = Random(k, n, 2, transposed).to(at::kBFloat16);
      const at::Tensor start = Random(m, n, 3, false);
      at::Tensor fresh = at::empty({m, n}, at::kBFloat16), added = start.to(at::kBFloat16);
      at::Tensor wide = start.clone();
      MatMul(fresh, a, b, /*accumulate=*/false, GetParam());
      MatMul(added, a, b, /*accumulate=*/true, GetParam());
      MatMul(wide, a, b, /*accumulate=*/true, GetParam());
      const at::Tensor exact =
          Product(a.to(at::kFloat).contiguous(), b.to(at::kFloat).contiguous());
      const at::Tensor got = fresh.to(at::kFloat), sum = added.to(at::kFloat);
      const at::Tensor before = start.to(at::kBFloat16).to(at::kFloat);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          const float product = At(exact, i, j);
          // Half a step of bf16, and what the order of sums in fp32 may change.
          const auto near = [](float value) { return std::abs(value) * 0x1p-8 + 1e-4; };
          ASSERT_NEAR(At(got, i, j), product, near(product)) << m << " " << i << ", " << j;
          const float both = product + At(before, i, j);
          ASSERT_NEAR(At(sum, i, j), both, near(both)) << m << " " << i << ", " << j;
          // What was there has lost nothing.
          ASSERT_EQ(At(wide, i, j), At(start, i, j) + At(got, i, j)) << m << " " << i << ", " << j;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Bf16GemmTest,
                         ::testing::Values(Bf16Products::kByLibrary, Bf16Products::kByFp32),
                         [](const auto& info) {
                           return info.param == Bf16Products::kByFp32 ? "ByFp32" : "ByLibrary";
                         });

INSTANTIATE_TEST_SUITE_P(
    Shapes, GemmTest,
    ::testing::Combine(
        // Single values, tile edges, more than one depth of packing, more rows than are packed.
        ::testing::Values(std::make_tuple(1, 1, 1), std::make_tuple(8, 16, 48),
                          std::make_tuple(13, 7, 51), std::make_tuple(17, 300, 97),
                          std::make_tuple(9, 2100, 50), std::make_tuple(1029, 33, 20)),
        ::testing::Bool(), ::testing::Bool()));

}  // namespace
}  // namespace harmony::worker
