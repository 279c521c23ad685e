// The product's kernel, compiled for AVX-512. The scheme is Goto's: pieces of A and B are copied
// into the order in which the innermost loop reads them, an 8 x 48 tile of C is summed in
// registers.
//
//   A, packed: for each 8 rows, k after k, their 8 values; held for kMostRows x kDeep (in L2 and
//   L3) B, packed: for 48 columns, k after k, their 48 values; kShallow deep (in L1)

#include <immintrin.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "worker/models/gemm_kernel.h"

namespace harmony::worker::gemm {
namespace {

constexpr int64_t kShallow = 256;   // steps of k between two visits of a tile
constexpr int64_t kDeep = 2048;     // steps of k that A is packed for
constexpr int64_t kMostRows = 512;  // rows that A is packed for

// Packing buffers of a thread. They are small and belong to no task: not under the device's cap.
struct Buffers {
  Buffers() : a(Allocate(kMostRows * kDeep)), b(Allocate(kColumns * kShallow)) {}
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  static float* Allocate(int64_t count) {
    void* memory = std::aligned_alloc(64, count * sizeof(float));
    if (!memory) throw std::bad_alloc();
    return static_cast<float*>(memory);
  }
  std::unique_ptr<float, Free> a, b;
};

// out[k * stride + i] = source[i * ld + k] for 8 x 8 values.
inline void Transpose8x8(const float* source, int64_t ld, float* out, int64_t stride) {
  __m256 r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(source + i * ld);
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + i * stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

// Packs `count` (at most 8) lines of a matrix whose k runs along memory: out[k * stride + i] =
// source[i * ld + k], zeros for i in [count, 8).
void PackAcross(const float* source, int64_t ld, int64_t count, int64_t depth, float* out,
                int64_t stride) {
  int64_t k = 0;
  if (count == 8) {
    for (; k + 8 <= depth; k += 8) Transpose8x8(source + k, ld, out + k * stride, stride);
  }
  for (; k < depth; ++k) {
    for (int64_t i = 0; i < 8; ++i) out[k * stride + i] = i < count ? source[i * ld + k] : 0.0f;
  }
}

// Packs `count` (at most Width) neighbours for each k: out[k * Width + i] = source[k * ld + i].
template <int64_t Width>
void PackAlong(const float* source, int64_t ld, int64_t count, int64_t depth, float* out) {
  if (count == Width) {
    for (int64_t k = 0; k < depth; ++k) {
      std::memcpy(out + k * Width, source + k * ld, Width * sizeof(float));
    }
    return;
  }
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t i = 0; i < Width; ++i) out[k * Width + i] = i < count ? source[k * ld + i] : 0.0f;
  }
}

// Rows [row, row + rows) and steps [k, k + depth) of A, in panels of 8 rows.
void PackA(const View& a, int64_t row, int64_t rows, int64_t k, int64_t depth, float* out) {
  for (int64_t i = 0; i < rows; i += kRows, out += kRows * depth) {
    const float* source = a.data + (row + i) * a.row_stride + k * a.column_stride;
    const int64_t count = std::min(kRows, rows - i);
    if (a.column_stride == 1) {
      PackAcross(source, a.row_stride, count, depth, out, kRows);
    } else {
      PackAlong<kRows>(source, a.column_stride, count, depth, out);
    }
  }
}

// One panel of B: columns [column, column + count), count at most 48.
void PackB(const View& b, int64_t k, int64_t depth, int64_t column, int64_t count, float* out) {
  const float* source = b.data + k * b.row_stride + column * b.column_stride;
  if (b.column_stride == 1) {
    PackAlong<kColumns>(source, b.row_stride, count, depth, out);
    return;
  }
  for (int64_t j = 0; j < kColumns; j += 8) {
    const int64_t lines = std::clamp<int64_t>(count - j, 0, 8);
    PackAcross(source + j * b.column_stride, b.column_stride, lines, depth, out + j, kColumns);
  }
}

// C tile (rows x columns, at most 8 x 48) = or += the sum over `depth` steps.
void Tile(const float* a, const float* b, int64_t depth, float* c, int64_t ldc, int64_t rows,
          int64_t columns, bool add) {
  __m512 sum[kRows][3];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    sum[i][0] = sum[i][1] = sum[i][2] = _mm512_setzero_ps();
  }
  for (int64_t k = 0; k < depth; ++k, a += kRows, b += kColumns) {
    const __m512 b0 = _mm512_load_ps(b);
    const __m512 b1 = _mm512_load_ps(b + 16);
    const __m512 b2 = _mm512_load_ps(b + 32);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m512 value = _mm512_set1_ps(a[i]);
      sum[i][0] = _mm512_fmadd_ps(value, b0, sum[i][0]);
      sum[i][1] = _mm512_fmadd_ps(value, b1, sum[i][1]);
      sum[i][2] = _mm512_fmadd_ps(value, b2, sum[i][2]);
    }
  }
  __mmask16 mask[3];
  for (int j = 0; j < 3; ++j) {
    const int64_t left = std::clamp<int64_t>(columns - 16 * j, 0, 16);
    mask[j] = static_cast<__mmask16>((uint32_t{1} << left) - 1);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    if (i >= rows) break;
#pragma GCC unroll 3
    for (int j = 0; j < 3; ++j) {
      float* at = c + i * ldc + 16 * j;
      __m512 result = sum[i][j];
      if (add) result = _mm512_add_ps(_mm512_maskz_loadu_ps(mask[j], at), result);
      _mm512_mask_storeu_ps(at, mask[j], result);
    }
  }
}

// All of C's columns in question for the rows and the depth that A is packed for.
void RunPacked(const Product& p, const float* packed_a, float* packed_b, int64_t row, int64_t rows,
               int64_t k, int64_t depth, int64_t column_begin, int64_t column_end) {
  for (int64_t column = column_begin; column < column_end; column += kColumns) {
    const int64_t columns = std::min(kColumns, column_end - column);
    for (int64_t step = 0; step < depth; step += kShallow) {
      const int64_t steps = std::min(kShallow, depth - step);
      PackB(p.b, k + step, steps, column, columns, packed_b);
      const bool add = p.accumulate || k + step > 0;
      for (int64_t i = 0; i < rows; i += kRows) {
        Tile(packed_a + i * depth + step * kRows, packed_b, steps, p.c + (row + i) * p.ldc + column,
             p.ldc, std::min(kRows, rows - i), columns, add);
      }
    }
  }
}

}  // namespace

void RunAvx512(const Product& p, int64_t row_begin, int64_t row_end, int64_t column_begin,
               int64_t column_end) {
  thread_local Buffers buffers;
  for (int64_t row = row_begin; row < row_end; row += kMostRows) {
    const int64_t rows = std::min(kMostRows, row_end - row);
    for (int64_t k = 0; k < p.k; k += kDeep) {
      const int64_t depth = std::min(kDeep, p.k - k);
      PackA(p.a, row, rows, k, depth, buffers.a.get());
      RunPacked(p, buffers.a.get(), buffers.b.get(), row, rows, k, depth, column_begin, column_end);
    }
  }
}

}  // namespace harmony::worker::gemm
