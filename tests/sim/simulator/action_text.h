#pragma once

#include <string>
#include <vector>

#include "coordinator/runner/job_runner.h"

namespace harmony::sim {

// What a job runner answers, a line for each action and each command: for tests that compare runs.
std::string DebugString(const std::vector<runner::Action>& actions);

}  // namespace harmony::sim
