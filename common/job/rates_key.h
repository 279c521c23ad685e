#pragma once

// The key learning_rate_after: a map of steps to the rate after them. Private to this folder.

#include <string>

#include "absl/status/status.h"
#include "common/job/job_keys.h"

namespace harmony::job {

absl::Status ReadRatesAfter(const JobKey& key, const JobValue& value, JobSpec& job);
// As JSON on one line.
std::string PrintRatesAfter(const JobSpec& job);

}  // namespace harmony::job
