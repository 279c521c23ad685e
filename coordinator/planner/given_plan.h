#pragma once

// A plan that the user gives (`--plan FILE`) instead of one that is searched for. PURE.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/planner/fit_advice.h"
#include "coordinator/planner/plan_builder.h"

namespace harmony {

// `given` (ParsePlanFile) made whole for this job and machine. InvalidArgument or, where it does
// not fit, ResourceExhausted; both begin with `where` and name the field.
absl::StatusOr<Plan> AdoptPlan(const ModelSpec& model, const JobSpec& job,
                               const MachineSpec& machine, const Plan& given,
                               absl::string_view where, const ModelOfLength& of_length);

}  // namespace harmony
