#pragma once

// What a plan promises before it is simulated: whether it fits, its lower bound and its estimate.
// PURE. Counts the work, since a search is as long as its work, not as its seconds.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "coordinator/core/analytic_costs.h"
#include "coordinator/planner/candidate.h"
#include "coordinator/planner/moves.h"
#include "coordinator/planner/plan_builder.h"
#include "coordinator/planner/step_estimate.h"

namespace harmony {

class Appraiser {
 public:
  // What a walk asks of a plan.
  struct Judgement {
    bool fits = false, fits_host = false;
    Nanos score, estimate, chain;
    int64_t work = 0;  // tasks
  };
  struct Counts {
    int64_t plans = 0, not_fitting = 0;
    int64_t tasks = 0;  // that were bounded, and what takes as long as that
  };

  // `builder` and `rules` must outlive it.
  Appraiser(const PlanBuilder& builder, const MoveRules& rules, const CostFactory& costs);

  const Counts& counts() const { return counts_; }
  // Otherwise an estimate is the bound.
  bool estimates() const { return estimates_; }
  TaskCosts& costs() { return costs_; }
  Nanos BoundOfAnyPlan() { return bounds_.OfAnyPlan(shape_, rules_.spans); }

  // What makes no difference becomes the same.
  void Normalize(Plan* plan) const;

  // Null: it does not fit. The plan is normalized.
  std::optional<Candidate> Bound(Plan plan);

  // Of a normalized plan; `key`: its KeyOf.
  std::optional<Candidate> BoundAndRemember(const Plan& plan, const std::string& key);
  // Null: it was not bounded by BoundAndRemember. Invalid after the next one.
  const Judgement* Remembered(const std::string& key) const;

 private:
  const PlanBuilder& builder_;
  const MoveRules& rules_;
  const Plan shape_;
  const bool estimates_;
  TaskCosts costs_;
  Bounds bounds_;
  StepEstimator estimator_;
  Counts counts_;
  absl::flat_hash_map<std::string, Judgement> judged_;  // by keys
};

}  // namespace harmony
