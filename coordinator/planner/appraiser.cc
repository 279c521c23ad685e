#include "coordinator/planner/appraiser.h"

#include <algorithm>
#include <utility>

#include "coordinator/planner/evaluation.h"

namespace harmony {
namespace {

// Setting up a plan takes about as long as bounding so many of its tasks, for each group.
constexpr int64_t kTasksPerGroup = 60;
constexpr int64_t kManyVisits = 64;  // then also for each pair of groups
// Of a task of a sample of microbatches: there are three more in all.
constexpr int64_t kWorkOfSample = 3;

}  // namespace

Appraiser::Appraiser(const PlanBuilder& builder, const MoveRules& rules, const CostFactory& costs)
    : builder_(builder),
      rules_(rules),
      shape_(builder.Blank()),
      estimates_(shape_.mode == ParallelMode::kPipeline && shape_.replicas == 1),
      costs_(builder.model(), shape_, costs(shape_)),
      bounds_(builder.model(), costs_),
      estimator_(builder.model(), costs_) {}

void Appraiser::Normalize(Plan* plan) const {
  if (rules_.alike_devices) RenameDevices(plan);
  if (plan->forward_groups.empty()) plan->forward_span = 1;
  if (plan->forward_span == 1) return;
  for (LayerGroup& group : plan->backward_groups) group.keep_activations = false;
}

std::optional<Candidate> Appraiser::Bound(Plan plan) {
  Normalize(&plan);
  Candidate candidate;
  candidate.plan = std::move(plan);
  ++counts_.plans;
  StepVisits step;
  const bool fits = builder_.Complete(&candidate.plan, &step);
  const auto visits = static_cast<int64_t>(step.visits.size());
  counts_.tasks += visits * (kTasksPerGroup + (visits > kManyVisits ? visits : 0));
  if (!fits) {
    ++counts_.not_fitting;
    return std::nullopt;
  }
  const int sample = SampleOfMicrobatches(candidate.plan);
  const bool all = sample == candidate.plan.num_microbatches;
  counts_.tasks += visits * (all ? candidate.plan.share_microbatches() : kWorkOfSample * sample);
  candidate.bound = bounds_.OfPlan(candidate.plan, step);
  const PlanBound& bound = candidate.bound;
  candidate.score = builder_.Score(candidate.plan, bound.step);
  candidate.estimate = candidate.score;
  if (estimates_) {
    candidate.estimate = builder_.Score(
        candidate.plan,
        std::max(bound.step, OfAllMicrobatches(candidate.plan, [&](int microbatches) {
                   return estimator_.Estimate(candidate.plan, step, microbatches);
                 })));
  }
  candidate.fits_host = builder_.FitsHost(candidate.plan);
  candidate.rank = {!candidate.fits_host, candidate.score, bound.chain, bound.copies,
                    KeyOf(candidate.plan)};
  return candidate;
}

std::optional<Candidate> Appraiser::BoundAndRemember(const Plan& plan, const std::string& key) {
  const int64_t before = counts_.tasks;
  std::optional<Candidate> candidate = Bound(plan);
  Judgement& judgement = judged_[key];
  judgement.work = counts_.tasks - before;
  if (!candidate) return candidate;
  judgement.fits = true;
  judgement.fits_host = candidate->fits_host;
  judgement.score = candidate->score;
  judgement.estimate = candidate->estimate;
  judgement.chain = candidate->bound.chain;
  return candidate;
}

const Appraiser::Judgement* Appraiser::Remembered(const std::string& key) const {
  const auto known = judged_.find(key);
  return known == judged_.end() ? nullptr : &known->second;
}

}  // namespace harmony
