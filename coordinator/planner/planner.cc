#include "coordinator/planner/planner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/job/job_check.h"
#include "coordinator/planner/fit/given_plan.h"
#include "coordinator/planner/fit/input_check.h"
#include "coordinator/planner/planning.h"
#include "coordinator/planner/search/microbatch.h"
#include "coordinator/planner/timing/task_costs.h"

namespace harmony::planner {
namespace {

absl::Status TakeGiven(const model::ModelSpec& model, const job::JobSpec& job,
                       const plan::MachineSpec& machine, const dispatch::CostFactory& costs,
                       const PlannerOptions& options, PlanResult* result) {
  HARMONY_ASSIGN_OR_RETURN(
      result->plan,
      AdoptPlan(model, job, machine, *options.given, options.given_path,
                {options.microbatch_size, options.replicas}, options.model_of_length));
  result->searched = false;
  const PlanBuilder builder(model, job, machine, result->plan.microbatch_size,
                            DivisionOf(result->plan));
  const MoveRules rules = RulesOf(builder);
  HARMONY_RETURN_IF_ERROR_CTX(Evaluate(builder, rules, costs, options, result), options.given_path);
  const plan::Plan shape = builder.Blank();
  TaskCosts tasks(model, shape, costs(shape));
  result->report.lower_bound =
      Bounds(model, tasks).OfAnyPlan(shape, builder.division().sets, rules.forward_task_sizes);
  return absl::OkStatus();
}

// The plan that there would be without the profile, of that size and with so many replicas.
absl::StatusOr<PlanResult> PlanWithoutProfile(const model::ModelSpec& model,
                                              const job::JobSpec& job,
                                              const plan::MachineSpec& machine,
                                              PlannerOptions options, int64_t microbatch_size,
                                              int replicas) {
  options.costs = nullptr;
  options.explain = false;
  options.microbatch_size = microbatch_size;
  options.replicas = replicas;
  const dispatch::CostFactory costs = dispatch::AnalyticCostFactory(model, machine.devices);
  return SearchedPlan(model, job, machine, costs, options,
                      MicrobatchesToTry(model, job, machine, costs, options));
}

// Takes the other plan where that is faster by the times of the profile.
absl::Status HoldAgainst(const plan::Plan& plan, const model::ModelSpec& model,
                         const job::JobSpec& job, const plan::MachineSpec& machine,
                         const PlannerOptions& options, PlanResult* result) {
  Alternative other{"the plan without the profile", true, {}, "by the times of the profile"};
  const absl::StatusOr<Estimate> estimate = EvaluatePlan(model, plan, *options.costs(plan));
  if (!estimate.ok()) return absl::OkStatus();
  other.step = estimate->step;
  if (other.step < result->estimate.step) {
    other.what = "the plan that the search by the profile ended with";
    other.step = result->estimate.step;
    result->plan = plan;
    const PlanBuilder builder(model, job, machine, plan.microbatch_size, DivisionOf(plan));
    HARMONY_RETURN_IF_ERROR(Evaluate(builder, RulesOf(builder), options.costs, options, result));
  }
  if (options.explain && other.step > result->estimate.step) {
    result->alternatives.insert(result->alternatives.begin(), std::move(other));
  }
  return absl::OkStatus();
}

// A search may end beside the best plan, even beside one that another search comes across. So the
// plan that there would be without the profile is held against the one by the profile.
absl::StatusOr<PlanResult> PlanByProfile(const model::ModelSpec& model, const job::JobSpec& job,
                                         const plan::MachineSpec& machine,
                                         const PlannerOptions& options,
                                         const std::vector<int64_t>& microbatches) {
  // Sizes and replicas fix the result: they are the profile's to choose. Where it chooses others
  // than those that are likely, the other plan is searched once more.
  const int64_t likely = microbatches.empty() ? 0 : microbatches.front();
  absl::StatusOr<PlanResult> result = absl::UnknownError("not searched"), none = result;
  const auto search = [&] {
    result = SearchedPlan(model, job, machine, options.costs, options, microbatches);
  };
  const auto search_without = [&] {
    none = PlanWithoutProfile(model, job, machine, options, likely, options.replicas);
  };
  options.run_both(search, search_without);
  HARMONY_RETURN_IF_ERROR(result.status());
  const int64_t size = result->plan.microbatch_size;
  const int replicas = result->plan.replicas;
  if (size != likely || (none.ok() && none->plan.replicas != replicas)) {
    none = PlanWithoutProfile(model, job, machine, options, size, replicas);
  }
  if (!none.ok()) return result;
  HARMONY_RETURN_IF_ERROR(HoldAgainst(none->plan, model, job, machine, options, &*result));
  return result;
}

}  // namespace

absl::StatusOr<PlanResult> MakePlan(const model::ModelSpec& model, const job::JobSpec& job,
                                    const plan::MachineSpec& machine,
                                    const PlannerOptions& options) {
  HARMONY_RETURN_IF_ERROR(job::CheckJob(job));
  if (machine.devices.empty()) return absl::InvalidArgumentError("devices: there is none");
  const dispatch::CostFactory costs =
      options.costs ? options.costs : dispatch::AnalyticCostFactory(model, machine.devices);
  const int64_t size = options.given != nullptr      ? options.given->microbatch_size
                       : job.micro_batch_size > 0    ? job.micro_batch_size
                       : options.microbatch_size > 0 ? options.microbatch_size
                                                     : LeastMicrobatch(job);
  HARMONY_RETURN_IF_ERROR(CheckTimes(model, job, machine, costs, size));
  if (options.given != nullptr) {
    PlanResult result;
    HARMONY_RETURN_IF_ERROR(TakeGiven(model, job, machine, costs, options, &result));
    return result;
  }
  const std::vector<int64_t> microbatches = MicrobatchesToTry(model, job, machine, costs, options);
  const bool by_profile = options.costs && !options.rough;
  HARMONY_ASSIGN_OR_RETURN(PlanResult result,
                           by_profile
                               ? PlanByProfile(model, job, machine, options, microbatches)
                               : SearchedPlan(model, job, machine, costs, options, microbatches));
  // A plan on these devices alone is one of those with one more.
  result.with_one_more = std::min(result.with_one_more, result.estimate.step);
  return result;
}

}  // namespace harmony::planner
