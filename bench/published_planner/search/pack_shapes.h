#pragma once

// Ways to cut a chain of layers into packs that fit: where a search starts from. PURE.

#include <limits>
#include <vector>

#include "bench/published_planner/cost_model/pack_costs.h"

namespace harmony::published {

enum class Phase { kForward, kBackward };

// [end]: the fewest packs that the layers before `end` can be cut into; kNoPacks when they cannot.
// Size layers + 1.
inline constexpr int kNoPacks = std::numeric_limits<int>::max();
std::vector<int> FewestPacks(const PackCosts& costs, Phase phase);

// Where those packs begin. REQUIRES: fewest[end] != kNoPacks.
std::vector<int> FewestStarts(const PackCosts& costs, Phase phase, const std::vector<int>& fewest,
                              int end);

// Pack starts for the layers before `end`: `packs` packs of about equal compute time, the first
// ones (towards layer 0, where a pipeline fills and drains) shrinking by the factor `taper` each,
// `tapered` of them. More packs where memory demands it, fewer where layers are too coarse. Empty
// when the layers cannot be cut so.
std::vector<int> TaperedStarts(const PackCosts& costs, Phase phase, int end, int packs,
                               double taper, int tapered);

}  // namespace harmony::published
