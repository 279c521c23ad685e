#pragma once

// Where GPUs compute attention by a fused kernel, which workers and descriptions have to agree on.

#include <cstdint>

namespace harmony::model {

// Of queries. Fewer are computed in pieces: all scores are one or a few of these then, and the
// copies of GpuAttentionSums (layer_cost.h) would be larger than all that such a model takes.
inline constexpr int64_t kLeastFusedRows = 128;

}  // namespace harmony::model
