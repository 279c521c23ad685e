#include "worker/models/gemm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "worker/models/gemm_kernel.h"

namespace harmony::worker {
namespace {

gemm::View ViewOf(const at::Tensor& matrix) {
  return {matrix.const_data_ptr<float>(), matrix.stride(0), matrix.stride(1)};
}

// Splits the longer side of C among the threads.
void RunParallel(const gemm::Product& p) {
  const bool by_rows = p.m >= p.n;
  const int64_t unit = by_rows ? gemm::kRows : gemm::kColumns;
  const int64_t length = by_rows ? p.m : p.n;
  const int64_t units = (length + unit - 1) / unit;
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  at::parallel_for(0, units, (units + threads - 1) / threads, [&](int64_t begin, int64_t end) {
    const int64_t from = begin * unit;
    const int64_t to = std::min(end * unit, length);
    if (by_rows) {
      gemm::RunAvx512(p, from, to, 0, p.n);
    } else {
      gemm::RunAvx512(p, 0, p.m, from, to);
    }
  });
}

// Of a product that is added to something wider: the part that exists beside it.
constexpr int64_t kRowsBeside = 256, kColumnsBeside = 4096;
// Of a product of bf16 by fp32: the block of C, and the steps of k, that exist in fp32.
constexpr int64_t kWideBlock = 64, kWideSteps = 2048;

// Calls fn(begin, count) for stretches of [0, size).
template <typename Fn>
void ForStretches(int64_t size, int64_t most, Fn&& fn) {
  for (int64_t begin = 0; begin < size; begin += most) fn(begin, std::min(most, size - begin));
}

void MultiplyAndWiden(at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
                      Bf16Products narrow) {
  ForStretches(c.size(0), kRowsBeside, [&](int64_t row, int64_t rows) {
    ForStretches(c.size(1), kColumnsBeside, [&](int64_t column, int64_t columns) {
      at::Tensor part = at::empty({rows, columns}, a.options());
      MatMul(part, a.narrow(0, row, rows), b.narrow(1, column, columns), /*accumulate=*/false,
             narrow);
      c.narrow(0, row, rows).narrow(1, column, columns).add_(part);
    });
  });
}

void MultiplyByLibrary(at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  if (accumulate) {
    c.addmm_(a, b);
  } else {
    at::mm_out(c, a, b);
  }
}

// In one step, whatever the strides: `to` and `contiguous` would hold a block twice.
at::Tensor Widened(const at::Tensor& block) {
  return at::empty(block.sizes(), block.options().dtype(at::kFloat)).copy_(block);
}

void MultiplyWidened(at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  ForStretches(c.size(0), kWideBlock, [&](int64_t row, int64_t rows) {
    ForStretches(c.size(1), kWideBlock, [&](int64_t column, int64_t columns) {
      at::Tensor block = c.narrow(0, row, rows).narrow(1, column, columns);
      at::Tensor sums = accumulate ? block.to(at::kFloat)
                                   : at::empty({rows, columns}, a.options().dtype(at::kFloat));
      ForStretches(a.size(1), kWideSteps, [&](int64_t step, int64_t steps) {
        MatMul(sums, Widened(a.narrow(0, row, rows).narrow(1, step, steps)),
               Widened(b.narrow(0, step, steps).narrow(1, column, columns)),
               accumulate || step > 0);
      });
      block.copy_(sums);
    });
  });
}

}  // namespace

bool HasBf16Products() { return __builtin_cpu_supports("avx512bf16") > 0; }

bool gemm::Avx512Supported() { return __builtin_cpu_supports("avx512f"); }

void MatMul(at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate,
            Bf16Products narrow) {
  static const bool fast = gemm::Avx512Supported();
  if (c.scalar_type() != a.scalar_type()) return MultiplyAndWiden(c, a, b, narrow);
  const bool is_narrow = a.scalar_type() != at::kFloat;
  if (is_narrow && narrow == Bf16Products::kByFp32) return MultiplyWidened(c, a, b, accumulate);
  if (is_narrow || !fast) return MultiplyByLibrary(c, a, b, accumulate);
  gemm::Product product;
  product.m = c.size(0);
  product.n = c.size(1);
  product.k = a.size(1);
  product.a = ViewOf(a);
  product.b = ViewOf(b);
  product.c = c.mutable_data_ptr<float>();
  product.ldc = c.stride(0);
  product.accumulate = accumulate;
  RunParallel(product);
}

}  // namespace harmony::worker
