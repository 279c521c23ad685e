#pragma once

// A product of matrices by the kernel that the built-in layers have (worker/models/gemm.h), an
// operation of graphs that is not LibTorch's. An export has it where that was asked for: it adds up
// in another order than eager PyTorch.
//
//   harmony::product(Tensor? bias, Tensor a, Tensor b) -> Tensor
//
// a [M, K] b [K, N] in fp32, plus bias [N] in each row, where there is one. Kinds of devices other
// than the CPU have LibTorch's product.

namespace torch {
class Library;
}

namespace harmony::worker {

void DefineProduct(torch::Library& library);

}  // namespace harmony::worker
