#pragma once

// `harmony logs -f`: log lines as they come, until a signal.

#include "absl/status/statusor.h"
#include "client/commands/inspect.h"

namespace harmony::client {

// Follows the logs of the processes, those of processes that start meanwhile too, or, of a job,
// what the coordinator reports of it until it has ended. Returns the exit code: 0 after Ctrl-C,
// which is how this is meant to end, and where nobody reads any more.
absl::StatusOr<int> FollowLogs(const GlobalOptions& global, const RuntimePaths& paths,
                               const LogsOptions& options);

}  // namespace harmony::client
