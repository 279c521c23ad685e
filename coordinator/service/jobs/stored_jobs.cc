#include "coordinator/service/jobs/stored_jobs.h"

#include <errno.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/service/jobs/job_registry.h"
#include "coordinator/store/database_copy.h"
#include "coordinator/store/job_store.h"

namespace harmony::service {

absl::StatusOr<v1::StoredJobs> ReadStoredJobs(const std::string& state_dir,
                                              const std::string& job_id) {
  int64_t holder = 0;
  HARMONY_ASSIGN_OR_RETURN(std::unique_ptr<store::JobStore> copy,
                           store::JobStore::OpenCopy(state_dir, &holder));
  HARMONY_ASSIGN_OR_RETURN(JobRegistry registry, JobRegistry::Open(std::move(copy)));
  v1::StoredJobs stored;
  stored.set_holder(holder);
  if (!job_id.empty()) {
    HARMONY_ASSIGN_OR_RETURN(const store::JobRecord* const record, registry.Find(job_id));
    FillJob(*record, stored.add_jobs());
    return stored;
  }
  for (const auto& [number, record] : registry.jobs()) FillJob(record, stored.add_jobs());
  return stored;
}

absl::StatusOr<v1::PruneResponse> PruneStoredJobs(const std::string& state_dir,
                                                  const std::string& ended_before) {
  v1::PruneResponse response;
  std::error_code error;
  if (!std::filesystem::exists(absl::StrCat(state_dir, "/", store::kDatabaseName), error)) {
    return response;
  }
  HARMONY_ASSIGN_OR_RETURN(std::unique_ptr<store::JobStore> store,
                           store::JobStore::Open(state_dir));
  HARMONY_ASSIGN_OR_RETURN(JobRegistry registry, JobRegistry::Open(std::move(store)));
  HARMONY_ASSIGN_OR_RETURN(const std::vector<std::string> ids, registry.Prune(ended_before));
  response.mutable_job_ids()->Assign(ids.begin(), ids.end());
  return response;
}

absl::Status WriteAnswer(int fd, const absl::StatusOr<std::string>& message) {
  const std::string answer =
      absl::StrCat(static_cast<int>(message.status().code()), "\n",
                   message.ok() ? absl::string_view(*message) : message.status().message());
  for (size_t written = 0; written < answer.size();) {
    const ssize_t count = write(fd, answer.data() + written, answer.size() - written);
    if (count < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "writing the answer");
    if (count > 0) written += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

}  // namespace harmony::service
