#pragma once

// `harmony prune`: jobs that have ended are forgotten.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/commands/common.h"

namespace harmony::client {

struct PruneOptions {
  std::string older_than;  // since when at least they have ended: "30d"; empty with `all`
  bool all = false;        // whenever they ended
};
// Asks the coordinator; where none is up, has the database changed under the lock of one.
int PruneCommand(const GlobalOptions& global, const PruneOptions& options);

// "90s", "45m", "12h", "30d", "2w". InvalidArgument says what is expected.
absl::StatusOr<absl::Duration> ParseAge(absl::string_view text);

}  // namespace harmony::client
