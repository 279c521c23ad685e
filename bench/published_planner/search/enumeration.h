#pragma once

// Every way to cut a short chain. PURE.

#include <limits>

#include "bench/published_planner/cost_model/pack_costs.h"
#include "bench/published_planner/cost_model/pipeline_evaluator.h"

namespace harmony::published {

// Up to here there are at most 22,000 pairs of forward and backward cuts.
inline constexpr int kEnumerableLayers = 9;

struct EnumerationResult {
  Cuts cuts;
  double time_s = 0;  // infinity when nothing fits, or nothing takes less than `cutoff`
  int64_t evaluations = 0;
};

// The best of all cuts that fit. REQUIRES: costs.layers <= kEnumerableLayers, gpus >= 2.
EnumerationResult TryAllCuts(const PackCosts& costs, int gpus,
                             double cutoff = std::numeric_limits<double>::infinity());

}  // namespace harmony::published
