#pragma once

// The key parameter_rules: a list of maps. Private to this folder; what rules do is in
// parameter_rules.h.

#include <string>

#include "absl/status/status.h"
#include "common/job/job_keys.h"

namespace harmony::job {

// Messages name the rule by its number, from 1.
absl::Status ReadParameterRules(const JobKey& key, const JobValue& value, JobSpec& job);
// As JSON on one line.
std::string PrintParameterRules(const JobSpec& job);

}  // namespace harmony::job
