#pragma once

// Jobs as the coordinator has them, or, while none is up to be asked, as their database has them.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/commands/common.h"

namespace harmony::client {

struct KnownJobs {
  google::protobuf::RepeatedPtrField<v1::Job> jobs;
  std::unique_ptr<CoordinatorClient> coordinator;  // that was asked; null: none is up
  int64_t holder = 0;                              // as in v1::StoredJobs, where none is up

  bool up() const { return coordinator != nullptr; }
  // Something carries jobs out.
  bool live() const { return up() || holder != 0; }
};

// Asks the coordinator that is up; else reads the job database of the state directory, for which
// nothing is started that stays, and nothing locked. `job_id` empty: all jobs, of which there may
// be none; else that one, or NotFound.
absl::StatusOr<KnownJobs> FindJobs(const GlobalOptions& global, const RuntimePaths& paths,
                                   const std::string& job_id);

// Forgets ended jobs in that database, under the lock that a coordinator would hold.
absl::StatusOr<v1::PruneResponse> PruneStoredJobs(const GlobalOptions& global,
                                                  const RuntimePaths& paths,
                                                  const v1::PruneRequest& request);

// Says to people, on standard error, if no coordinator is up, and whose jobs these are then.
void SayIfNothingRuns(const RuntimePaths& paths, const KnownJobs& known);

}  // namespace harmony::client
