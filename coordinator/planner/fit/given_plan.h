#pragma once

// A plan that the user gives (`--plan FILE`) instead of one that is searched for. PURE.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/planner/fit/fit_advice.h"
#include "coordinator/planner/fit/plan_builder.h"

namespace harmony::planner {

// `given` (ParsePlanFile) made whole for this job and machine. InvalidArgument or, where it does
// not fit, ResourceExhausted; both begin with `where` and name the field.
absl::StatusOr<plan::Plan> AdoptPlan(const model::ModelSpec& model, const job::JobSpec& job,
                                     const plan::MachineSpec& machine, const plan::Plan& given,
                                     absl::string_view where, const ModelOfLength& of_length);

}  // namespace harmony::planner
