#pragma once

// The pipeline's part of the search. PURE.

#include <vector>

#include "bench/published_planner/cost_model/pack_costs.h"
#include "bench/published_planner/search/search.h"

namespace harmony::published {

// `pairs`: the profile at each pair of microbatch sizes. size_pairs is 0 in the result when at none
// of them any cuts fit. Method: many tapered cuts per pair are timed, the pairs of the least lower
// bounds first; pairs whose lower bound the best of them beats are dropped; short chains are
// enumerated, for others annealing runs are spent on the rest in rounds, each round on fewer pairs
// with more steps. REQUIRES: gpus >= 2.
SearchResult SearchPipeline(const std::vector<PackCosts>& pairs, int gpus,
                            const SearchOptions& options);

}  // namespace harmony::published
