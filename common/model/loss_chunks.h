#pragma once

// How many rows of logits a loss computes at a time, where it never holds all of them. PURE.

#include <cstdint>

#include "common/base/dtype.h"
#include "common/base/units.h"

namespace harmony::model {

// A power of two from 16 to 1024, such that their float32 logits are at most `logits`; 16 where
// there are very many classes. A function of nothing else, so that results depend on neither cap
// nor batch.
inline int64_t LossChunkRows(int64_t classes, Bytes logits) {
  const int64_t most = logits.count() / SizeOf(DType::kF32).count() / classes;
  int64_t rows = 16;
  while (rows * 2 <= most && rows < 1024) rows *= 2;
  return rows;
}

}  // namespace harmony::model
