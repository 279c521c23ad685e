#include "common/base/dtype.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"

namespace harmony {
namespace {

constexpr std::array<std::pair<absl::string_view, int64_t>, 15> kDTypes = {{{"F32", 4},
                                                                            {"BF16", 2},
                                                                            {"F16", 2},
                                                                            {"F64", 8},
                                                                            {"F8_E4M3", 1},
                                                                            {"F8_E5M2", 1},
                                                                            {"I64", 8},
                                                                            {"U64", 8},
                                                                            {"I32", 4},
                                                                            {"U32", 4},
                                                                            {"I16", 2},
                                                                            {"U16", 2},
                                                                            {"I8", 1},
                                                                            {"U8", 1},
                                                                            {"BOOL", 1}}};

}  // namespace

Bytes SizeOf(DType dtype) { return Bytes(kDTypes[static_cast<size_t>(dtype)].second); }

absl::string_view ToString(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].first; }

absl::string_view PrecisionName(DType dtype) {
  return dtype == DType::kF32 ? "fp32" : dtype == DType::kBF16 ? "bf16" : "fp16";
}

std::optional<DType> ParsePrecision(absl::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == PrecisionName(dtype)) return dtype;
  }
  return std::nullopt;
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].first == name) return static_cast<DType>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name.substr(0, 60), "' is not a type of the safetensors format"));
}

}  // namespace harmony
