#include "common/model/value_range.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace harmony::model {
namespace {

// Calls `use` with the array as what it is; `otherwise` where it is no array of integers.
template <typename Result, typename Use>
Result AsIntegers(const void* values, DType dtype, Result otherwise, Use use) {
  switch (dtype) {
    case DType::kI64:
      return use(static_cast<const int64_t*>(values));
    case DType::kI32:
      return use(static_cast<const int32_t*>(values));
    case DType::kI16:
      return use(static_cast<const int16_t*>(values));
    case DType::kI8:
      return use(static_cast<const int8_t*>(values));
    case DType::kU8:
      return use(static_cast<const uint8_t*>(values));
    default:
      return otherwise;
  }
}

}  // namespace

std::string ToString(const ValueRange& range) {
  std::string text = absl::StrCat("[0, ", range.below, ")");
  if (range.also.has_value()) absl::StrAppend(&text, " nor ", *range.also);
  return text;
}

bool HasRanges(DType dtype) {
  return AsIntegers(nullptr, dtype, false, [](const auto*) { return true; });
}

bool Fits(int64_t number, DType dtype) {
  return AsIntegers(nullptr, dtype, false,
                    [number]<typename T>(const T*) { return std::in_range<T>(number); });
}

int64_t IntegerAt(const void* values, DType dtype, int64_t i) {
  return AsIntegers(values, dtype, int64_t{0},
                    [i](const auto* numbers) { return static_cast<int64_t>(numbers[i]); });
}

int64_t FirstOutside(const void* values, DType dtype, int64_t count, const ValueRange& range) {
  return AsIntegers(values, dtype, int64_t{-1}, [&](const auto* numbers) {
    for (int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<int64_t>(numbers[i]);
      if ((value < 0 || value >= range.below) && value != range.also) return i;
    }
    return int64_t{-1};
  });
}

}  // namespace harmony::model
