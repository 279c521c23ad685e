#include "coordinator/planner/search/scorer.h"

#include <numeric>
#include <utility>

#include "coordinator/planner/search/placement.h"

namespace harmony::planner {
namespace {

// Setting up a plan takes about as long as bounding so many of its tasks, for each group.
constexpr int64_t kTasksPerGroup = 60;
constexpr int64_t kManyGroups = 64;  // Beyond these, setting up takes longer for each pair of them.

}  // namespace

PlanScorer::PlanScorer(const PlanBuilder& builder, const MoveRules& rules,
                       const dispatch::CostFactory& costs)
    : builder_(builder),
      rules_(rules),
      shape_(builder.Blank()),
      costs_(builder.model(), shape_, costs(shape_)),
      bounds_(builder.model(), costs_) {}

void PlanScorer::Normalize(plan::Plan* plan) const {
  if (rules_.alike_devices) RenameDevices(plan);
  if (plan->forward_groups.empty()) plan->microbatches_per_forward_task = 1;
  for (const std::vector<plan::LayerGroup>* groups :
       {&plan->forward_groups, &plan->backward_groups}) {
    for (const plan::LayerGroup& group : *groups) {
      plan->microbatches_per_forward_task =
          std::gcd(plan->microbatches_per_forward_task, plan->entry_microbatches(group));
    }
  }
  if (plan->microbatches_per_forward_task == 1) return;
  for (plan::LayerGroup& group : plan->backward_groups) group.keep_activations = false;
}

std::optional<Candidate> PlanScorer::Score(plan::Plan plan) {
  Normalize(&plan);
  const std::string key = KeyOf(plan);
  std::optional<Candidate> candidate = Bound(std::move(plan), key);
  Known& known = known_[key];
  known.fits = candidate.has_value();
  if (!candidate) return candidate;
  known.fits_host = candidate->fits_host;
  known.score = candidate->score;
  if (candidate->fits_host) known.chain = candidate->bound.chain;
  return candidate;
}

std::optional<Candidate> PlanScorer::Bound(plan::Plan plan, const std::string& key) {
  Candidate candidate;
  candidate.plan = std::move(plan);
  ++counts_.plans;
  StepExecutions step;
  const bool fits = builder_.Complete(&candidate.plan, &step);
  const auto executions = static_cast<int64_t>(step.executions.size());
  counts_.tasks += executions * (kTasksPerGroup + (executions > kManyGroups ? executions : 0));
  if (!fits) {
    ++counts_.not_fitting;
    return std::nullopt;
  }
  const int sample = SampleOfMicrobatches(candidate.plan);
  for (const dispatch::GroupExecution& execution : step.executions) {
    counts_.tasks += std::min(sample, execution.shard_count);
  }
  candidate.bound = bounds_.OfPlan(candidate.plan, step);
  candidate.score = builder_.Score(candidate.plan, candidate.bound.step);
  candidate.fits_host = builder_.FitsHost(candidate.plan);
  candidate.rank = {!candidate.fits_host, candidate.score, candidate.bound.chain,
                    candidate.bound.copies, key};
  return candidate;
}

const PlanScorer::Known* PlanScorer::Find(const std::string& key) const {
  const auto known = known_.find(key);
  return known == known_.end() ? nullptr : &known->second;
}

}  // namespace harmony::planner
