#pragma once

// From a model, a job and a machine to a plan, and what to say about it. PURE.
//
// Version 0: forward groups are the backward groups (the last one is fused), group g runs on device
// g mod N. Groups come from the job's `layer_groups`, or from balanced partitions under the memory
// caps; candidates are compared, and proved to run, by the dispatcher under the simulator's clock.

#include <string>

#include "absl/status/statusor.h"
#include "common/plan/job_spec.h"
#include "common/plan/machine.h"
#include "common/plan/plan.h"
#include "coordinator/core/analytic_costs.h"

namespace harmony {

// InvalidArgument or Unimplemented: names the job's key. ResourceExhausted: names the group that
// fits no plan, its device, the bytes missing and what would fit; or the host memory that is
// missing (checked where machine.host_memory is not zero). `costs`: what candidates are compared
// by; none: AnalyticCosts.
absl::StatusOr<Plan> MakePlan(const ModelSpec& model, const JobSpec& job,
                              const MachineSpec& machine, CostFactory costs = nullptr);

// Need and fit of each device and of the host, groups, minimal swap.
std::string ExplainPlan(const ModelSpec& model, const JobSpec& job, const Plan& plan,
                        const MachineSpec& machine);
std::string PlanToJson(const ModelSpec& model, const JobSpec& job, const Plan& plan,
                       const MachineSpec& machine);

}  // namespace harmony
