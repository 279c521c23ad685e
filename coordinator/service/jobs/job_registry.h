#pragma once

// All jobs there are and were: records in memory, written through to the store, and what was
// reported of each.

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/units.h"
#include "coordinator/store/job_record.h"
#include "coordinator/store/job_store.h"

namespace harmony::v1 {
class Job;
}  // namespace harmony::v1

namespace harmony::service {

// Owner: Coordinator; loop thread only. Failures to write are logged: a full disk must not stop
// training. What a state could not be saved of is saved later.
class JobRegistry {
 public:
  // Loads what the store has.
  static absl::StatusOr<JobRegistry> Open(std::unique_ptr<store::JobStore> store);

  absl::StatusOr<store::JobRecord*> Add(store::JobRecord record);
  // "job-3" or "3"; empty: the newest. NotFound names what there is.
  absl::StatusOr<store::JobRecord*> Find(absl::string_view id);
  std::map<int64_t, store::JobRecord>& jobs() { return jobs_; }

  // Forgets the jobs that ended before this time (RFC 3339, UTC, with milliseconds; empty: all that
  // have ended), but those that `in_use` says are still needed here; returns their ids. Jobs that
  // have not ended stay.
  absl::StatusOr<std::vector<std::string>> Prune(
      const std::string& ended_before,
      const std::function<bool(int64_t number)>& in_use = [](int64_t) { return false; });

  void Save(const store::JobRecord& record);
  // What Save failed with, at most once a second; to be called again and again.
  void SaveUnsaved(Nanos now);
  void SaveProgress(const store::JobRecord& record);
  // Into the job's log, this process's log and the messages of watchers.
  void Report(const store::JobRecord& record, const std::string& text);
  absl::StatusOr<std::vector<store::JobLogLine>> ReadLog(const store::JobRecord& record);
  // What was reported since this process started.
  const std::vector<std::string>& Messages(const store::JobRecord& record);

 private:
  explicit JobRegistry(std::unique_ptr<store::JobStore> store) : store_(std::move(store)) {}

  std::unique_ptr<store::JobStore> store_;
  std::map<int64_t, store::JobRecord> jobs_;
  std::map<int64_t, std::vector<std::string>> messages_;
  std::set<int64_t> unsaved_;  // jobs whose last Save failed
  Nanos next_try_;
};

void FillJob(const store::JobRecord& record, v1::Job* job);

}  // namespace harmony::service
