#pragma once

// Which values of a job go together, whoever wrote them: a file, a stored text, a run that went
// before. What one value may be, its reader says (job_keys.cc). PURE.

#include "absl/status/status.h"
#include "common/job/job_spec.h"

namespace harmony::job {

// InvalidArgument begins with the key and says what to change; the caller puts in front where the
// job came from.
absl::Status CheckJob(const JobSpec& job);

}  // namespace harmony::job
