#include "coordinator/planner/paper/lower_bound.h"

#include <algorithm>
#include <limits>

#include "coordinator/planner/paper/pack_shapes.h"

namespace harmony::paper {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

double PipelineLowerBound(const PackCosts& costs, int gpus) {
  const PackCosts& c = costs;
  const std::vector<int> forward_packs = FewestPacks(c, Phase::kForward);
  const std::vector<int> backward_packs = FewestPacks(c, Phase::kBackward);
  const double n = gpus;
  const auto mf = static_cast<double>(c.fwd_microbatches);
  const auto mb = static_cast<double>(c.bwd_microbatches);
  const double smallest_swap = *std::min_element(c.bwd_swap_s.begin(), c.bwd_swap_s.end());
  const double smallest_peer = *std::min_element(c.bwd_peer_s.begin(), c.bwd_peer_s.end());
  double best = kInfinity;
  for (int s = 0; s < c.layers; ++s) {  // where the last backward pack begins
    if (!c.BackwardFits(s, c.layers)) continue;
    const int forward = forward_packs[s], backward = backward_packs[s];
    if (forward == kNoPacks || backward == kNoPacks) continue;
    // Link time is n times longer on n GPUs, so it counts whole; the rest is shared.
    double link = c.weights_s.Over(0, s) + 2 * c.weights_s.Over(0, c.layers);
    double shared = mf * c.forward_s.Over(0, s) + mb * c.backward_s.Over(0, c.layers) +
                    (forward + backward + 1) * c.delay_s;
    // Recomputing may overlap the wait for the gradient from behind.
    double path = 2 * c.weights_s.Over(0, 1) + c.backward_s.Over(0, c.layers) -
                  c.recompute_s.Over(0, s) + std::max(c.delay_s, c.update_s.Over(0, 1));
    link += mb * c.bwd_swap_s[0];  // the data
    if (s > 0) {                   // and their stash, other stashes, boundary tensors
      link += 2 * mb * (c.bwd_swap_s[0] + (backward - 1) * smallest_swap);
      shared += mb * (forward - 1 + backward) * smallest_peer;
      path += c.forward_s.Over(0, s);
    }
    best = std::min(best, std::max(link + shared / n, path));
  }
  return best;
}

}  // namespace harmony::paper
