#pragma once

// What clients ask of the jobs of a state directory that no coordinator serves: answered by a
// process of its own, `harmony-coordinator --jobs-once`, since the schema is ours alone.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "harmony/v1/coordinator.pb.h"

namespace harmony::service {

// Reads, and neither locks nor makes anything. `job_id` as in JobRegistry::Find; empty: all jobs.
absl::StatusOr<v1::StoredJobs> ReadStoredJobs(const std::string& state_dir,
                                              const std::string& job_id);

// Forgets ended jobs as JobRegistry::Prune does, under the lock that a coordinator would hold:
// FailedPrecondition when one has it. Without a database there is nothing to do.
absl::StatusOr<v1::PruneResponse> PruneStoredJobs(const std::string& state_dir,
                                                  const std::string& ended_before);

// Writes to `fd` what the client reads: the number of the status code, a line feed, and then the
// serialized message or the error's text.
absl::Status WriteAnswer(int fd, const absl::StatusOr<std::string>& message);

}  // namespace harmony::service
