#include "coordinator/planner/search/residency.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace harmony::planner {
namespace {

constexpr size_t kMostTries = 16;  // each is an evaluation of the plan

using CanKeep = bool (*)(const plan::Plan&, const plan::LayerGroup&);
using Keep = void (*)(plan::LayerGroup&);

// The last groups first: they keep it for the shortest time.
plan::Plan KeepMore(plan::Plan plan, PlanTime time_of, CanKeep can_keep, Keep keep) {
  std::vector<size_t> candidates;
  for (size_t g = plan.backward_groups.size(); g-- > 0;) {
    if (can_keep(plan, plan.backward_groups[g])) candidates.push_back(g);
  }
  if (candidates.empty()) return plan;
  std::optional<Nanos> best = time_of(plan);
  if (!best) return plan;
  // All of them; else some at a time.
  const size_t some = (candidates.size() + kMostTries - 1) / kMostTries;
  for (size_t count : {candidates.size(), some}) {
    for (size_t first = 0; first < candidates.size(); first += count) {
      plan::Plan next = plan;
      for (size_t i = first; i < std::min(first + count, candidates.size()); ++i) {
        keep(next.backward_groups[candidates[i]]);
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

}  // namespace

plan::Plan KeepWeights(plan::Plan plan, PlanTime time_of) {
  return KeepMore(std::move(plan), time_of, plan::CanKeepWeights,
                  [](plan::LayerGroup& group) { group.keep_weights = true; });
}

plan::Plan KeepActivations(plan::Plan plan, PlanTime time_of) {
  return KeepMore(std::move(plan), time_of, plan::CanKeepActivations, [](plan::LayerGroup& group) {
    group.keep_stash = group.keep_activations = true;
  });
}

}  // namespace harmony::planner
