#include <immintrin.h>

#include "worker/optimizer/vector_kernels.h"

namespace harmony::worker {
namespace {

struct Avx512 {
  using Floats = __m512;
  using Doubles = __m512d;
  static constexpr int64_t kWidth = 16;
  static constexpr int kDoubleWidth = 8;
  static Floats Set(float x) { return _mm512_set1_ps(x); }
  static Floats Load(const float* p) { return _mm512_loadu_ps(p); }
  static Floats Load(const uint16_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static void Store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
  static void StoreBf16(uint16_t* p, Floats x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i rounded =
        _mm512_mask_mov_epi32(_mm512_srli_epi32(up, 16), _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                              _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(rounded));
  }
  static Floats Add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats Sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  static Floats Mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats Div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
  static Floats Sqrt(Floats a) { return _mm512_sqrt_ps(a); }
  static Doubles SetDouble(double x) { return _mm512_set1_pd(x); }
  static void StoreDoubles(double* p, Doubles x) { _mm512_storeu_pd(p, x); }
  static void AddSquare(Doubles* sums, Floats g) {
    const Doubles low = _mm512_cvtps_pd(_mm512_castps512_ps256(g));
    const Doubles high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(g, 1));
    sums[0] = _mm512_add_pd(sums[0], _mm512_mul_pd(low, low));
    sums[1] = _mm512_add_pd(sums[1], _mm512_mul_pd(high, high));
  }
};

}  // namespace

const Kernels kAvx512Kernels = {AdamW<Avx512>, Sgd<Avx512>, SquaredNorm<Avx512>};

}  // namespace harmony::worker
