#pragma once

// Matrix products of the layers: C = A B or C += A B, in fp32 or bf16; sums are fp32 inside.
//
// Those of bf16 are LibTorch's where the processor has instructions for them (AVX512-BF16, AMX),
// else products of fp32 on widened blocks: LibTorch's own would be slower by a power of ten. As in
// PyTorch's mixed precision a product of bf16 that is added to fp32 was rounded to bf16 before.
//
// Those of fp32 run, on CPUs with AVX-512, on a kernel of our own, else on ATen's. LibTorch's
// product (MKL) stays with AVX2 on processors that are not Intel's; there this one was measured to
// be twice as fast. It also gives the same bits for every number of threads: each element of C is
// summed by one thread, in an order that depends on the shape of the product only.

#include <ATen/core/Tensor.h>

namespace harmony::worker {

// Whether the processor has instructions for products of bf16.
bool HasBf16Products();

enum class Bf16Products { kByLibrary, kByFp32 };
inline Bf16Products BestBf16Products() {
  static const bool has = HasBf16Products();
  return has ? Bf16Products::kByLibrary : Bf16Products::kByFp32;
}

// c [M, N] = a [M, K] b [K, N], or += with `accumulate`. a and b may be transposed views: one of
// the two strides of each, and the last one of c, must be 1. All are of one type, or c is fp32 and,
// with `accumulate`, a and b are bf16.
void MatMul(at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate,
            Bf16Products narrow = BestBf16Products());

}  // namespace harmony::worker
