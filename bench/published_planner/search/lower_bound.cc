#include "bench/published_planner/search/lower_bound.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace harmony::published {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// [end]: the least sum of `cost(first, end)` over packs that fit and cover the layers before `end`.
template <typename Fits, typename Cost>
std::vector<double> CheapestPacks(int layers, const Fits& fits, const Cost& cost) {
  std::vector<double> least(layers, kInfinity);
  least[0] = 0;
  for (int end = 1; end < layers; ++end) {
    for (int first = 0; first < end; ++first) {
      if (least[first] == kInfinity || !fits(first, end)) continue;
      least[end] = std::min(least[end], least[first] + cost(first, end));
    }
  }
  return least;
}

}  // namespace

double PipelineLowerBound(const PackCosts& costs, int gpus) {
  const PackCosts& c = costs;
  // Link time is n times longer on n busy GPUs, so in the average over GPUs it counts whole; the
  // rest is shared.
  const double n = gpus;
  const auto mf = static_cast<double>(c.fwd_microbatches);
  const auto mb = static_cast<double>(c.bwd_microbatches);
  const std::vector<double> forward = CheapestPacks(
      c.layers, [&](int first, int end) { return c.ForwardFits(first, end); },
      [&](int first, int end) {
        const double input = first == 0 ? c.fwd_swap_s[0] : c.fwd_peer_s[first] / n;
        return c.weights_s.Over(first, end) + c.delay_s / n +
               mf * (c.forward_s.Over(first, end) / n + input);
      });
  const std::vector<double> backward = CheapestPacks(
      c.layers, [&](int first, int end) { return c.BackwardFits(first, end); },
      [&](int first, int end) {
        const double stash = 2 * c.bwd_swap_s[first];  // out in forward, in
        return 2 * c.weights_s.Over(first, end) + c.delay_s / n +
               mb * (c.backward_s.Over(first, end) / n + stash + c.bwd_peer_s[end] / n);
      });
  const bool by_host = c.u_fwd != c.u_bwd;
  double best = kInfinity;
  for (int s = 0; s < c.layers; ++s) {  // where the last backward pack begins
    if (!c.BackwardFits(s, c.layers)) continue;
    const double input = s == 0 || by_host ? c.bwd_swap_s[s] : c.bwd_peer_s[s] / n;
    const double last = 2 * c.weights_s.Over(s, c.layers) + c.delay_s / n +
                        mb * (c.backward_s.Over(s, c.layers) / n + input);
    // Recomputing may overlap the wait for the gradient from behind.
    const double path = 2 * c.weights_s.Over(0, 1) + c.forward_s.Over(0, s) +
                        c.backward_s.Over(0, c.layers) - c.recompute_s.Over(0, s) +
                        std::max(c.delay_s, c.update_s.Over(0, 1));
    best = std::min(best, std::max(forward[s] + backward[s] + last, path));
  }
  return best;
}

}  // namespace harmony::published
