#pragma once

// Matrix products of the layers: C = A B or C += A B in fp32.
//
// On CPUs with AVX-512 they run on a kernel of our own, else on ATen's. LibTorch's product (MKL)
// stays with AVX2 on processors that are not Intel's; there this one was measured to be twice as
// fast. It also gives the same bits for every number of threads: each element of C is summed by one
// thread, in an order that depends on the shape of the product only.

#include <ATen/core/Tensor.h>

namespace harmony::worker {

// c [M, N] = a [M, K] b [K, N], or += with `accumulate`. a and b may be transposed views: one of
// the two strides of each, and the last one of c, must be 1.
void MatMul(at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool accumulate);
// The same into a new tensor.
at::Tensor MatMul(const at::Tensor& a, const at::Tensor& b);

}  // namespace harmony::worker
