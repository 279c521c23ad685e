#include "bench/published_planner/search/enumeration.h"

#include <algorithm>
#include <limits>

namespace harmony::published {
namespace {

// Bit l - 1 of `mask`: a pack begins at layer l. No starts when there are no layers.
std::vector<int> StartsOf(unsigned mask, int layers) {
  std::vector<int> starts;
  if (layers > 0) starts.push_back(0);
  for (int l = 1; l < layers; ++l) {
    if ((mask >> (l - 1) & 1) != 0) starts.push_back(l);
  }
  return starts;
}

unsigned MasksOf(int layers) { return layers > 0 ? 1u << (layers - 1) : 1; }

}  // namespace

EnumerationResult TryAllCuts(const PackCosts& costs, int gpus, double cutoff) {
  PipelineEvaluator evaluator(costs, gpus);
  EnumerationResult best;
  best.time_s = std::numeric_limits<double>::infinity();
  Cuts cuts;
  for (unsigned backward = 0; backward < MasksOf(costs.layers); ++backward) {
    cuts.backward = StartsOf(backward, costs.layers);
    const int forward_layers = cuts.backward.back();
    for (unsigned forward = 0; forward < MasksOf(forward_layers); ++forward) {
      cuts.forward = StartsOf(forward, forward_layers);
      if (!Fits(cuts, costs)) continue;
      ++best.evaluations;
      const double limit = std::min(best.time_s, cutoff);
      const double time = evaluator.Evaluate(cuts, limit);
      if (time >= limit) continue;
      best.time_s = time;
      best.cuts = cuts;
    }
  }
  return best;
}

}  // namespace harmony::published
