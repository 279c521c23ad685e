#pragma once

// Jobs as their database has them while no coordinator is up to be asked.

#include <string>

#include "absl/status/statusor.h"
#include "client/commands/common.h"

namespace harmony::client {

// Reads the job database of the state directory; nothing is started that stays, nothing is locked.
// `job_id` empty: all jobs, of which there may be none; else that one, or NotFound.
absl::StatusOr<v1::StoredJobs> ReadStoredJobs(const GlobalOptions& global,
                                              const RuntimePaths& paths, const std::string& job_id);

// Forgets ended jobs in that database, under the lock that a coordinator would hold.
absl::StatusOr<v1::PruneResponse> PruneStoredJobs(const GlobalOptions& global,
                                                  const RuntimePaths& paths,
                                                  const v1::PruneRequest& request);

// Says to people, on standard error, that no coordinator is up, and whose jobs these are.
void SayNothingRuns(const RuntimePaths& paths, const v1::StoredJobs& stored);

}  // namespace harmony::client
