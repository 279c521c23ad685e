#include "worker/graphs/integers.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace harmony::worker {
namespace {

constexpr std::array<std::pair<absl::string_view, IntegerOp>, 11> kNames = {
    {{"sym::size", IntegerOp::kSize},
     {"sym::stride", IntegerOp::kStride},
     {"sym::numel", IntegerOp::kNumel},
     {"sym::add", IntegerOp::kAdd},
     {"sym::sub", IntegerOp::kSub},
     {"sym::mul", IntegerOp::kMul},
     {"sym::floordiv", IntegerOp::kFloorDiv},
     {"sym::mod", IntegerOp::kMod},
     {"sym::neg", IntegerOp::kNeg},
     {"sym::max", IntegerOp::kMax},
     {"sym::min", IntegerOp::kMin}}};

// By reference: whatever makes `overflow` writes the result as well.
int64_t Exact(bool overflow, const int64_t& result) {
  TORCH_CHECK(!overflow, "the result has more than 64 bits");
  return result;
}

// Quotient and remainder as Python has them.
std::pair<int64_t, int64_t> Divide(int64_t a, int64_t b) {
  TORCH_CHECK(b != 0, "division by zero");
  TORCH_CHECK(b != -1 || a != std::numeric_limits<int64_t>::min(),
              "the result has more than 64 bits");
  int64_t quotient = a / b, remainder = a % b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) {
    --quotient;
    remainder += b;
  }
  return {quotient, remainder};
}

}  // namespace

std::optional<IntegerOp> ParseIntegerOp(absl::string_view name) {
  for (const auto& [known, op] : kNames) {
    if (name == known) return op;
  }
  return std::nullopt;
}

ValueKind ArgumentKind(IntegerOp op, size_t argument) {
  const bool tensor = argument == 0 && (op == IntegerOp::kSize || op == IntegerOp::kStride ||
                                        op == IntegerOp::kNumel);
  return tensor ? ValueKind::kTensor : ValueKind::kInteger;
}

int64_t ComputeInteger(IntegerOp op, const torch::jit::Stack& arguments) {
  const auto number = [&](size_t i) { return arguments[i].toInt(); };
  int64_t result = 0;
  switch (op) {
    case IntegerOp::kSize:
      return arguments[0].toTensor().size(number(1));
    case IntegerOp::kStride:
      return arguments[0].toTensor().stride(number(1));
    case IntegerOp::kNumel:
      return arguments[0].toTensor().numel();
    case IntegerOp::kAdd:
      return Exact(__builtin_add_overflow(number(0), number(1), &result), result);
    case IntegerOp::kSub:
      return Exact(__builtin_sub_overflow(number(0), number(1), &result), result);
    case IntegerOp::kMul:
      return Exact(__builtin_mul_overflow(number(0), number(1), &result), result);
    case IntegerOp::kFloorDiv:
      return Divide(number(0), number(1)).first;
    case IntegerOp::kMod:
      return Divide(number(0), number(1)).second;
    case IntegerOp::kNeg:
      return Exact(__builtin_sub_overflow(int64_t{0}, number(0), &result), result);
    case IntegerOp::kMax:
      return std::max(number(0), number(1));
    case IntegerOp::kMin:
      return std::min(number(0), number(1));
  }
  return 0;
}

}  // namespace harmony::worker
