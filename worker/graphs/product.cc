#include "worker/graphs/product.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include <optional>

#include "worker/graphs/operator_parts.h"
#include "worker/models/gemm.h"

namespace harmony::worker {
namespace {

void Check(const std::optional<at::Tensor>& bias, const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(IsMatrix(a) && IsMatrix(b) && a.size(1) == b.size(0), "a is ", a.scalar_type(), " ",
              a.sizes(), ", b ", b.scalar_type(), " ", b.sizes());
  TORCH_CHECK(BiasFits(bias, b.size(1)), "the bias does not fit a product with ", b.sizes());
}

// With rows or columns that lie in memory without gaps, as the kernel reads them.
at::Tensor Readable(const at::Tensor& matrix) {
  return matrix.stride(0) == 1 || matrix.stride(1) == 1 ? matrix : matrix.contiguous();
}

at::Tensor ProductOnCpu(const std::optional<at::Tensor>& bias, const at::Tensor& a,
                        const at::Tensor& b) {
  Check(bias, a, b);
  at::Tensor made = at::empty({a.size(0), b.size(1)}, a.options());
  if (bias.has_value()) made.copy_(bias->expand(made.sizes()));
  if (made.numel() == 0) return made;
  if (a.size(1) == 0) return bias.has_value() ? made : made.zero_();
  MatMul(made, Readable(a), Readable(b), /*accumulate=*/bias.has_value());
  return made;
}

at::Tensor ProductOnOthers(const std::optional<at::Tensor>& bias, const at::Tensor& a,
                           const at::Tensor& b) {
  Check(bias, a, b);
  return bias.has_value() ? at::addmm(*bias, a, b) : at::mm(a, b);
}

}  // namespace

void DefineProduct(torch::Library& library) {
  library.def("product(Tensor? bias, Tensor a, Tensor b) -> Tensor");
  library.impl("product", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(ProductOnCpu)));
  library.impl("product", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                          TORCH_FN(ProductOnOthers)));
}

}  // namespace harmony::worker
