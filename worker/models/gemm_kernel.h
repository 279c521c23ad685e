#pragma once

// The kernel under MatMul, on pointers. Its source is compiled for AVX-512, so this header includes
// nothing whose inline functions could end up in other code.

#include <cstdint>

namespace harmony::worker::gemm {

// A matrix in memory; one of the strides is 1.
struct View {
  const float* data = nullptr;
  int64_t row_stride = 0;
  int64_t column_stride = 0;
};

struct Product {
  int64_t m = 0, n = 0, k = 0;
  View a, b;
  float* c = nullptr;  // [m, n], row stride ldc
  int64_t ldc = 0;
  bool accumulate = false;
};

bool Avx512Supported();
// MatMul gives a row of C the same bits whatever other rows there are: true of this kernel, which
// sums over k in an order that depends on k only. Products of other libraries may choose by the
// number of rows.
inline bool RowsIndependent() { return Avx512Supported(); }
// The rows [row_begin, row_end) and columns [column_begin, column_end) of C, by the calling thread.
// Beginnings are multiples of kRows and kColumns. REQUIRES: Avx512Supported().
void RunAvx512(const Product& product, int64_t row_begin, int64_t row_end, int64_t column_begin,
               int64_t column_end);

inline constexpr int64_t kRows = 8;      // of the tile that lives in registers
inline constexpr int64_t kColumns = 48;  // three vectors

}  // namespace harmony::worker::gemm
