#pragma once

// Operations on integers, by which graphs compute shapes: "sym::mul" and its like.

#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "worker/graphs/arguments.h"

namespace harmony::worker {

enum class IntegerOp {
  kSize,
  kStride,
  kNumel,
  kAdd,
  kSub,
  kMul,
  kFloorDiv,  // towards minus infinity, as Python's
  kMod,       // of the divisor's sign
  kNeg,
  kMax,
  kMin,
};

// Nothing for a name that is none: a graph file's were checked (graph_file.h).
std::optional<IntegerOp> ParseIntegerOp(absl::string_view name);

// What its arguments have to be.
ValueKind ArgumentKind(IntegerOp op, size_t argument);

// Throws c10::Error on a division by zero and where a result has more than 64 bits.
int64_t ComputeInteger(IntegerOp op, const torch::jit::Stack& arguments);

}  // namespace harmony::worker
