#pragma once

// What a job runner was told, as a text file (proto/harmony/v1/recording.proto in protobuf's text
// format): to record a run and to play it again. Commands are not in it, since they are answers.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/runner/job_runner.h"

namespace harmony::recording {

using Recording = std::vector<std::pair<Nanos, runner::Event>>;
std::string WriteRecording(const Recording& recording);
// InvalidArgument names the line that is no such text, or the event that is none.
absl::StatusOr<Recording> ReadRecording(absl::string_view text);

}  // namespace harmony::recording
