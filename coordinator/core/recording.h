#pragma once

// Texts of what a job runner is told and what it answers: to record a run and to play it again.
//
// A recording is a text file, one event a line: "<nanoseconds> <event>". Commands never appear in
// it (they are answers); records do, one word each.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "coordinator/core/job_runner.h"

namespace harmony {

std::string DebugString(const Event& event);
std::string DebugString(const std::vector<Action>& actions);

using Recording = std::vector<std::pair<Nanos, Event>>;
std::string WriteRecording(const Recording& recording);
// InvalidArgument names the line that is damaged.
absl::StatusOr<Recording> ReadRecording(absl::string_view text);

}  // namespace harmony
