#include "coordinator/planner/residency.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace harmony {
namespace {

constexpr size_t kMostTries = 16;  // each is a run of the simulator

// Backward groups whose weights a forward group loads on the same device, the last one first: it
// keeps them for the shortest time.
std::vector<size_t> Candidates(const Plan& plan) {
  std::vector<size_t> result;
  for (size_t g = plan.backward_groups.size(); g-- > 0;) {
    for (const LayerGroup& forward : plan.forward_groups) {
      const LayerGroup& group = plan.backward_groups[g];
      if (forward.layers == group.layers && forward.device == group.device) result.push_back(g);
    }
  }
  return result;
}

}  // namespace

Plan KeepWeights(Plan plan, PlanTime time_of) {
  const std::vector<size_t> candidates = Candidates(plan);
  std::optional<Nanos> best = time_of(plan);
  if (!best) return plan;
  // All of them; else some at a time.
  const size_t some = (candidates.size() + kMostTries - 1) / kMostTries;
  for (size_t count : {candidates.size(), some}) {
    for (size_t first = 0; first < candidates.size(); first += count) {
      Plan next = plan;
      for (size_t i = first; i < std::min(first + count, candidates.size()); ++i) {
        next.backward_groups[candidates[i]].keep_weights = true;
      }
      const std::optional<Nanos> time = time_of(next);
      if (!time || *time > *best) continue;
      best = time;
      plan = std::move(next);
      if (count == candidates.size()) return plan;
    }
  }
  return plan;
}

}  // namespace harmony
