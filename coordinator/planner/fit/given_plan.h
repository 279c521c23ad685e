#pragma once

// A plan that the user gives (`--plan FILE`) instead of one that is searched for. PURE.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/planner/fit/fit_advice.h"
#include "coordinator/planner/fit/plan_builder.h"

namespace harmony::planner {

// What a run was begun with, which fixes its result where the job leaves it open; 0: there is none.
struct BegunWith {
  int64_t microbatch_size = 0;
  int replicas = 0;
};

// `given` (ParsePlanFile) made whole for this job and machine. InvalidArgument or, where it does
// not fit, ResourceExhausted; both begin with `where` and name the field.
absl::StatusOr<plan::Plan> AdoptPlan(const model::ModelSpec& model, const job::JobSpec& job,
                                     const plan::MachineSpec& machine, const plan::Plan& given,
                                     absl::string_view where, const BegunWith& begun,
                                     const ModelOfLength& of_length);

}  // namespace harmony::planner
