#pragma once

// What a job's plan is made by, for programs that put something else beside it.

#include "coordinator/dispatch/costs/analytic_costs.h"
#include "coordinator/service/jobs/admission.h"

namespace harmony::bench {

// The request's profile, or the planner's estimate by the devices' speeds. The job's model and the
// machine must outlive it. Errors of SetCosts.
inline absl::StatusOr<dispatch::CostFactory> CostsOf(const service::JobRequest& request,
                                                     const service::AdmittedJob& job,
                                                     const plan::MachineSpec& machine) {
  planner::PlannerOptions options;
  const absl::Status set = service::SetCosts(request, job, machine, &options);
  if (!set.ok()) return set;
  if (options.costs) return options.costs;
  return dispatch::AnalyticCostFactory(job.model, machine.devices);
}

}  // namespace harmony::bench
