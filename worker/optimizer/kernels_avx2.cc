#include <immintrin.h>

#include "worker/optimizer/vector_kernels.h"

namespace harmony::worker {
namespace {

struct Avx2 {
  using Floats = __m256;
  using Doubles = __m256d;
  static constexpr int64_t kWidth = 8;
  static constexpr int kDoubleWidth = 4;
  static Floats Set(float x) { return _mm256_set1_ps(x); }
  static Floats Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, Floats x) { _mm256_storeu_ps(p, x); }
  static Floats Add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static Floats Sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
  static Floats Mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats Div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
  static Floats Sqrt(Floats a) { return _mm256_sqrt_ps(a); }
  static Doubles SetDouble(double x) { return _mm256_set1_pd(x); }
  static void StoreDoubles(double* p, Doubles x) { _mm256_storeu_pd(p, x); }
  static void AddSquare(Doubles* sums, Floats g) {
    const Doubles low = _mm256_cvtps_pd(_mm256_castps256_ps128(g));
    const Doubles high = _mm256_cvtps_pd(_mm256_extractf128_ps(g, 1));
    sums[0] = _mm256_add_pd(sums[0], _mm256_mul_pd(low, low));
    sums[1] = _mm256_add_pd(sums[1], _mm256_mul_pd(high, high));
  }
};

}  // namespace

const Kernels kAvx2Kernels = {AdamW<Avx2>, Sgd<Avx2>, SquaredNorm<Avx2>};

}  // namespace harmony::worker
