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
  static Floats Load(const uint16_t* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static void Store(float* p, Floats x) { _mm256_storeu_ps(p, x); }
  static void StoreBf16(uint16_t* p, Floats x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i not_a_number = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i rounded =
        _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), _mm256_set1_epi32(0x7fc0), not_a_number);
    // Packing works in halves of the register.
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
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
