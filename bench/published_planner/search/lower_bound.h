#pragma once

// What no pipeline can beat at given microbatch sizes, under the published cost model without
// prefetch. PURE.

#include "bench/published_planner/cost_model/pack_costs.h"

namespace harmony::published {

// Seconds; infinity when no cuts fit. Two arguments, the better one counts:
//  - work: every GPU does its loads, microbatches, gradient stores and delays one after the other,
//  so
//    the iteration lasts at least their sum over all tasks divided by the GPUs. Of all cuts that
//    fit it takes those with the least such sum (dynamic programming, forward and backward apart).
//  - path: the first microbatch goes forward through all layers, the last one back.
double PipelineLowerBound(const PackCosts& costs, int gpus);

}  // namespace harmony::published
