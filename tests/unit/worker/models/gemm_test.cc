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
  const at::Tensor fresh = MatMul(a, b);
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
