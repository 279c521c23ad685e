#pragma once

// Which integers an input may have: checked by those who read data, before a run, and by those who
// compute with them. PURE.

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/dtype.h"

namespace harmony::model {

struct ValueRange {
  int64_t below = 0;                 // integers lie in [0, below); 0: not bounded
  std::optional<int64_t> also = {};  // one more that they may have: a label that does not count

  bool bounded() const { return below > 0; }
};

std::string ToString(const ValueRange& range);  // "[0, 5) nor -100"

// Whether FirstOutside knows numbers of a type.
bool HasRanges(DType dtype);

// Whether a type that has ranges has this number.
bool Fits(int64_t number, DType dtype);

// Number i of an array of integers of a type that has ranges.
int64_t IntegerAt(const void* values, DType dtype, int64_t i);

// The position of the first of so many integers that is none of the range; -1: all are.
// REQUIRES: the range is bounded, HasRanges(dtype), and `values` are aligned for it.
int64_t FirstOutside(const void* values, DType dtype, int64_t count, const ValueRange& range);

}  // namespace harmony::model
