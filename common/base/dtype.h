#pragma once

// Types of the numbers in a tensor, and their sizes: the one place where either is said.

#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/units.h"

namespace harmony {

// The types that safetensors files know.
enum class DType {
  kF32,
  kBF16,
  kF16,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kI64,
  kU64,
  kI32,
  kU32,
  kI16,
  kU16,
  kI8,
  kU8,
  kBool,
};

Bytes SizeOf(DType dtype);                // of one number
absl::string_view ToString(DType dtype);  // as safetensors writes it: "BF16"
absl::StatusOr<DType> ParseDType(absl::string_view name);
// As jobs and command lines call a precision: "fp32", "bf16", "fp16". REQUIRES: one of these.
absl::string_view PrecisionName(DType dtype);
// The other way round; nothing for other texts.
std::optional<DType> ParsePrecision(absl::string_view name);

// Tensors of such a type have gradients.
inline bool IsFloatingPoint(DType dtype) { return dtype <= DType::kF8E5M2; }

}  // namespace harmony
