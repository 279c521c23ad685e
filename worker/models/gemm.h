#pragma once

// Matrix products of the layers: C = A B or C += A B in fp32.
//
// On CPUs with AVX-512 they run on a kernel of our own, else on ATen's. LibTorch's product (MKL)
// stays with AVX2 on processors that are not Intel's; there this one was measured to be twice as
// fast. It also gives the same bits for every number of threads: each element of C is summed by one
// thread, in an order that depends on the shape of the product only.

#include <ATen/core/Tensor.h>

namespace harmony {

// c [M, N] = a [M, K] b [K, N], or += with `accumulate`. a and b may be transposed views: one of
// the two strides of each, and the last one of c, must be 1.
void MatMul(at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate);
// The same into a new tensor.
at::Tensor MatMul(const at::Tensor& a, const at::Tensor& b);

namespace gemm {

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
// The rows [row_begin, row_end) and columns [column_begin, column_end) of C, by the calling thread.
// Beginnings are multiples of kRows and kColumns. REQUIRES: Avx512Supported().
void RunAvx512(const Product& product, int64_t row_begin, int64_t row_end, int64_t column_begin,
               int64_t column_end);

inline constexpr int64_t kRows = 8;      // of the tile that lives in registers
inline constexpr int64_t kColumns = 48;  // three vectors

}  // namespace gemm

}  // namespace harmony
