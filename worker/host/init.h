#pragma once

// Random initialisation, counter-based: an element's value depends on the seed and on its place in
// the model only. The host worker fills the arena with it, the plain trainer its own memory: the
// same bits.

#include <cstdint>

#include "absl/types/span.h"
#include "common/model/model_spec.h"

namespace harmony::worker {

// Elements [begin, begin + out.size()) of a tensor of block number `block`, as its InitKind says:
// normal(0, init_std), zeros or ones. Pure; any split into ranges gives the same values.
void InitializeRange(const model::TensorSpec& tensor, int block, uint64_t seed, int64_t begin,
                     absl::Span<float> out);

}  // namespace harmony::worker
