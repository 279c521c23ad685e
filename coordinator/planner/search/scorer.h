#pragma once

// What is known of a plan before it is run dry: whether it fits, and its lower bound. PURE. Counts
// the work, since a search is as long as its work, not as its seconds.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "coordinator/dispatch/costs/analytic_costs.h"
#include "coordinator/planner/fit/plan_builder.h"
#include "coordinator/planner/search/candidate.h"
#include "coordinator/planner/search/moves.h"
#include "coordinator/planner/timing/bounds.h"

namespace harmony::planner {

class PlanScorer {
 public:
  // What is remembered of a plan.
  struct Known {
    bool fits = false, fits_host = false;
    Nanos score, chain;  // the chain of those that fit both
  };
  struct Counts {
    int64_t plans = 0, not_fitting = 0;
    int64_t tasks = 0;  // that were bounded, and what takes as long as that
  };

  // `builder` and `rules` must outlive it.
  PlanScorer(const PlanBuilder& builder, const MoveRules& rules,
             const dispatch::CostFactory& costs);

  const Counts& counts() const { return counts_; }
  TaskCosts& costs() { return costs_; }
  Nanos BoundOfAnyPlan() {
    return bounds_.OfAnyPlan(shape_, builder_.division().sets, rules_.forward_task_sizes);
  }

  // Makes plans the same that differ in what makes no difference.
  void Normalize(plan::Plan* plan) const;

  // Null: the plan does not fit. The candidate's plan is normalized; what is found is remembered.
  std::optional<Candidate> Score(plan::Plan plan);

  // By KeyOf a normalized plan. Null: it was not scored yet. Invalid after the next Score.
  const Known* Find(const std::string& key) const;

 private:
  std::optional<Candidate> Bound(plan::Plan plan, const std::string& key);

  const PlanBuilder& builder_;
  const MoveRules& rules_;
  const plan::Plan shape_;
  TaskCosts costs_;
  Bounds bounds_;
  Counts counts_;
  absl::flat_hash_map<std::string, Known> known_;  // by keys
};

}  // namespace harmony::planner
