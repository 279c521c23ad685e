#pragma once

// Whether a run that was planned as one job may go on as another: only where it would have had the
// same bits, had it been the other from its start.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/job/job_spec.h"

namespace harmony::job {

// `before`: ResultKeysText of the job by which `steps` steps were done; `after` and `after_keys`:
// the job by which the next is to be, and its text. Only max_steps and learning_rate_after may
// differ, and only so that all steps done have the rates that they had. FailedPrecondition says
// which keys stand against it, and what to give instead.
absl::Status CheckGoesOn(absl::string_view before, const JobSpec& after,
                         absl::string_view after_keys, int64_t steps);

}  // namespace harmony::job
