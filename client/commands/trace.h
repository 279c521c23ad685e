#pragma once

// Timelines of jobs as files.

#include "client/commands/common.h"

namespace harmony::client {

struct TraceOptions {
  std::string job_id, output;
  int64_t last_steps = 20;  // 0: all that is kept
};
// Writes a Chrome trace, to load in Perfetto.
int TraceCommand(const GlobalOptions& global, const TraceOptions& options);

struct SavedTrace {
  int measured = 0, planned = 0;          // events
  int64_t first_step = 0, last_step = 0;  // from 1
  std::string why_not_planned;            // when `planned` is 0
};
// Asks the coordinator and writes the file; folders on the way to it are made.
absl::StatusOr<SavedTrace> SaveTrace(CoordinatorClient& client, const TraceOptions& options);
// "trace of steps 3 to 22 in FILE: ..."
std::string Describe(const SavedTrace& trace, const std::string& path);

}  // namespace harmony::client
