#pragma once

// The decisions of a plan as JSON, for people and for `--plan FILE`. What follows from them, the
// job and the machine (memory, arena, buffers in it) is not in the file. PURE; the only place that
// reads or writes this format.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/plan/plan.h"

namespace harmony::plan {

inline constexpr char kPlanSchema[] = "harmony-plan/1";

// An object; groups, microbatches, update mode, slots and the number of devices.
std::string PlanFileText(const Plan& plan);

// From such an object, or from the whole output of `harmony plan --json`, which has it as its field
// "plan". The plan has what is in the file; its devices are empty. InvalidArgument, beginning with
// `where`, names the field (unknown, missing or out of range), or says what CheckShape finds.
absl::StatusOr<Plan> ParsePlanFile(absl::string_view text, absl::string_view where);

}  // namespace harmony::plan
