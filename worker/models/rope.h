#pragma once

// The angles of rotary embedding, computed with the very operations transformers uses, in fp32, so
// that tables agree to the bit.

#include <vector>

#include "common/model/model_config.h"

namespace harmony::worker {

struct RopeTables {
  int64_t tokens = 0, head_dim = 0;
  std::vector<float> frequencies;  // [head_dim / 2]; an angle is a position times these
  std::vector<float> cosines;      // [tokens, head_dim / 2]
  std::vector<float> sines;
};

RopeTables MakeRopeTables(const model::RopeConfig& rope, int64_t head_dim, int64_t tokens);

}  // namespace harmony::worker
