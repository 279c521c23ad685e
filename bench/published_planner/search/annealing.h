#pragma once

// Local search over the cuts of a pipeline, at fixed microbatch sizes. PURE and deterministic: the
// result depends on the arguments only.

#include <cstdint>

#include "bench/published_planner/cost_model/pack_costs.h"
#include "bench/published_planner/cost_model/pipeline_evaluator.h"

namespace harmony::published {

struct AnnealingOptions {
  uint64_t seed = 0;
  int64_t steps = 1'000'000;  // row steps of the evaluator: the work to spend
  // Temperatures, as shares of the time of the start.
  double hot = 1e-2, cold = 1e-5;
};

struct AnnealingResult {
  Cuts cuts;
  double time_s = 0;
  int64_t evaluations = 0;
};

// REQUIRES: `start` fits; gpus >= 2. The result is never worse than `start`.
AnnealingResult Anneal(const PackCosts& costs, int gpus, const Cuts& start,
                       const AnnealingOptions& options);

}  // namespace harmony::published
