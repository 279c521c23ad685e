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

}  // namespace

bool gemm::Avx512Supported() { return __builtin_cpu_supports("avx512f"); }

void MatMul(at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  static const bool fast = gemm::Avx512Supported();
  if (!fast) {
    if (accumulate) {
      c.addmm_(a, b);
    } else {
      at::mm_out(c, a, b);
    }
    return;
  }
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

at::Tensor MatMul(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor c = at::empty({a.size(0), b.size(1)}, a.options());
  MatMul(c, a, b, false);
  return c;
}

}  // namespace harmony::worker
