#include "bench/published_planner/search/pack_shapes.h"

#include <algorithm>
#include <cmath>

namespace harmony::published {
namespace {

bool FitsIn(const PackCosts& costs, Phase phase, int first, int end) {
  return phase == Phase::kForward ? costs.ForwardFits(first, end) : costs.BackwardFits(first, end);
}

// Fills packs from layer 0 on, each up to its share of `full` seconds; at least one layer each.
std::vector<int> Fill(const PackCosts& costs, Phase phase, int end, double full, double taper,
                      int tapered) {
  const RunningSum& seconds = phase == Phase::kForward ? costs.forward_s : costs.backward_s;
  std::vector<int> starts;
  for (int first = 0; first < end;) {
    const int small = tapered - static_cast<int>(starts.size());
    const double limit = small > 0 ? full * std::pow(taper, small) : full;
    if (!FitsIn(costs, phase, first, first + 1)) return {};
    int stop = first + 1;
    while (stop < end && FitsIn(costs, phase, first, stop + 1) &&
           seconds.Over(first, stop + 1) <= limit) {
      ++stop;
    }
    starts.push_back(first);
    first = stop;
  }
  return starts;
}

}  // namespace

std::vector<int> FewestPacks(const PackCosts& costs, Phase phase) {
  std::vector<int> fewest(costs.layers + 1, kNoPacks);
  fewest[0] = 0;
  for (int first = 0; first < costs.layers; ++first) {
    if (fewest[first] == kNoPacks) continue;
    for (int end = first + 1; end <= costs.layers; ++end) {
      if (FitsIn(costs, phase, first, end)) fewest[end] = std::min(fewest[end], fewest[first] + 1);
    }
  }
  return fewest;
}

std::vector<int> FewestStarts(const PackCosts& costs, Phase phase, const std::vector<int>& fewest,
                              int end) {
  std::vector<int> starts;
  while (end > 0) {
    int first = end - 1;
    while (fewest[first] != fewest[end] - 1 || !FitsIn(costs, phase, first, end)) --first;
    starts.push_back(first);
    end = first;
  }
  std::reverse(starts.begin(), starts.end());
  return starts;
}

std::vector<int> TaperedStarts(const PackCosts& costs, Phase phase, int end, int packs,
                               double taper, int tapered) {
  const RunningSum& seconds = phase == Phase::kForward ? costs.forward_s : costs.backward_s;
  double low = 0, high = seconds.Over(0, end) * 1.001;
  std::vector<int> best = Fill(costs, phase, end, high, taper, tapered);
  constexpr int kBisections = 24;
  for (int round = 0; round < kBisections && !best.empty(); ++round) {
    const double middle = (low + high) / 2;
    std::vector<int> starts = Fill(costs, phase, end, middle, taper, tapered);
    if (static_cast<int>(starts.size()) <= packs) {
      high = middle;
      best = std::move(starts);
    } else {
      low = middle;
    }
  }
  return best;
}

}  // namespace harmony::published
