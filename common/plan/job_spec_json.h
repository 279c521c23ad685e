#pragma once

// A JobSpec as it travels between the processes of a job and is kept in the store: one JSON object
// with the members' names. Not the job file (job_file.h): nothing is optional, nothing defaulted.
// PURE.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/plan/job_spec.h"

namespace harmony {

// Numbers round-trip exactly.
std::string JobSpecToJson(const JobSpec& job);
// InvalidArgument names a member that is missing, of another type or out of its range.
absl::StatusOr<JobSpec> JobSpecFromJson(absl::string_view json);

}  // namespace harmony
