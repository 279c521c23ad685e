#include "worker/graphs/rotary.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty_permuted.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "worker/device/torch_tensors.h"
#include "worker/graphs/define_operator.h"
#include "worker/graphs/operator_parts.h"

namespace harmony::worker {
namespace {

constexpr int64_t kMostDimensions = 4;

void CheckTable(const at::Tensor& x, const at::Tensor& table) {
  TORCH_CHECK(table.scalar_type() == x.scalar_type() &&
                  at::is_expandable_to(table.sizes(), x.sizes()) && table.size(-1) == x.size(-1),
              "a table is ", table.scalar_type(), " ", table.sizes(), ", which does not fit ",
              x.scalar_type(), " ", x.sizes());
}

void Check(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
           at::IntArrayRef order) {
  NumberOf(x.scalar_type());  // of a type that all devices compute in
  TORCH_CHECK(x.dim() >= 1 && x.dim() <= kMostDimensions && x.size(-1) % 2 == 0,
              "rows of two halves are turned, in a tensor of up to four dimensions, not ",
              x.sizes());
  CheckTable(x, cosines);
  CheckTable(x, sines);
  std::vector<int64_t> dimensions(static_cast<size_t>(x.dim()));
  std::iota(dimensions.begin(), dimensions.end(), 0);
  TORCH_CHECK(order.size() == dimensions.size() && order.back() == x.dim() - 1 &&
                  std::is_permutation(order.begin(), order.end(), dimensions.begin()),
              "the order ", order, " is none of the dimensions of ", x.sizes(),
              " that leaves the last");
}

at::Tensor Turned(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
                  at::IntArrayRef order, bool backward) {
  Check(x, cosines, sines, order);
  at::Tensor out = at::empty_permuted(x.sizes(), order, x.options());
  at::mul_out(out, x, cosines);
  const int64_t half = x.size(-1) / 2;
  const auto first = [&](const at::Tensor& of) { return of.narrow(-1, 0, half); };
  const auto second = [&](const at::Tensor& of) { return of.narrow(-1, half, half); };
  if (backward) {
    // Autograd adds the zeros of the other half as well, which make 0 of -0.
    out.add_(0);
    first(out).add_(at::mul(second(x), second(sines)));
    second(out).sub_(at::mul(first(x), first(sines)));
  } else {
    first(out).sub_(at::mul(second(x), first(sines)));
    second(out).add_(at::mul(first(x), second(sines)));
  }
  return out;
}

at::Tensor Rotary(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
                  at::IntArrayRef order) {
  return Turned(x, cosines, sines, order, /*backward=*/false);
}

at::Tensor RotaryBackward(const at::Tensor& gradient, const at::Tensor& cosines,
                          const at::Tensor& sines, at::IntArrayRef order) {
  return Turned(gradient, cosines, sines, order, /*backward=*/true);
}

// What a tensor has of each dimension but the last, in an order of them; others come before.
void SetOuter(at::IntArrayRef of, at::IntArrayRef order, int64_t (&to)[kMostDimensions - 1]) {
  const size_t missing = kMostDimensions - order.size();
  for (size_t i = 0; i + 1 < order.size(); ++i) {
    to[missing + i] = of[static_cast<size_t>(order[i])];
  }
}

// Of a tensor that is expanded to the sizes of the result.
TableRotation::Rows RowsOf(const at::Tensor& tensor, at::IntArrayRef order) {
  TableRotation::Rows rows{tensor.const_data_ptr(), {}};
  SetOuter(tensor.strides(), order, rows.strides);
  return rows;
}

at::Tensor TurnedByRows(const RowKernels& kernels, const at::Tensor& given,
                        const at::Tensor& given_cosines, const at::Tensor& given_sines,
                        at::IntArrayRef order, bool backward) {
  Check(given, given_cosines, given_sines, order);
  const at::Tensor x = WithRows(given);
  const at::Tensor cosines = WithRows(given_cosines).expand(x.sizes());
  const at::Tensor sines = WithRows(given_sines).expand(x.sizes());
  const at::Tensor out = at::empty_permuted(x.sizes(), order, x.options());
  TableRotation rotation;
  rotation.type = NumberOf(x.scalar_type());
  SetOuter(x.sizes(), order, rotation.sizes);
  rotation.width = x.size(-1);
  rotation.x = RowsOf(x, order);
  rotation.cosines = RowsOf(cosines, order);
  rotation.sines = RowsOf(sines, order);
  rotation.backward = backward;
  if (out.numel() != 0) kernels.RotateByTables(rotation, out.mutable_data_ptr());
  return out;
}

}  // namespace

at::Tensor RotaryByRows(const RowKernels& kernels, const at::Tensor& x, const at::Tensor& cosines,
                        const at::Tensor& sines, at::IntArrayRef order) {
  return TurnedByRows(kernels, x, cosines, sines, order, /*backward=*/false);
}

at::Tensor RotaryBackwardByRows(const RowKernels& kernels, const at::Tensor& gradient,
                                const at::Tensor& cosines, const at::Tensor& sines,
                                at::IntArrayRef order) {
  return TurnedByRows(kernels, gradient, cosines, sines, order, /*backward=*/true);
}

void DefineRotary(torch::Library& library) {
  const auto define = [&](auto... operation) { DefineOperator(library, operation...); };
  define("rotary(Tensor x, Tensor cos, Tensor sin, int[] order) -> Tensor", "rotary",
         TORCH_FN(Rotary));
  define("rotary_backward(Tensor gradient, Tensor cos, Tensor sin, int[] order) -> Tensor",
         "rotary_backward", TORCH_FN(RotaryBackward));
}

}  // namespace harmony::worker
