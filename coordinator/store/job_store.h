#pragma once

// Jobs and their history in SQLite. Every call is one transaction, written ahead of the data (WAL),
// so a kill at any moment leaves the state before it or after it. A loss of power may take the last
// seconds back, but no job that Insert has taken.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/store/job_record.h"

namespace SQLite {
class Database;
}

namespace harmony::store {

struct JobLogLine {
  std::string time;  // RFC 3339, UTC
  std::string text;
};

// Owner: the coordinator's loop; one thread. One process at a time per folder: the file stays
// locked while it is open.
class JobStore {
 public:
  // Opens or makes `state_dir`/jobs.sqlite. FailedPrecondition when another process has it, or when
  // it was written by a newer program (schema version).
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(const std::string& state_dir);
  // The same of a copy, made this moment, for who only wants to look: nothing is written to
  // `state_dir`, locked or made there, so a process that has the database open, or is about to open
  // it, never notices. Without a database: an empty one. `holder` is the process that has the
  // original open; 0: none.
  static absl::StatusOr<std::unique_ptr<JobStore>> OpenCopy(const std::string& state_dir,
                                                            int64_t* holder);
  ~JobStore();
  JobStore(const JobStore&) = delete;
  JobStore& operator=(const JobStore&) = delete;

  // Adds the record and gives it its number.
  absl::Status Insert(JobRecord* record);
  absl::Status Save(const JobRecord& record);
  // Only what changes with every step.
  absl::Status SaveProgress(int64_t number, int64_t completed_steps, double last_loss);
  // In order of submission.
  absl::StatusOr<std::vector<JobRecord>> LoadAll();
  // Forgets these jobs and their logs; their numbers are not given again. All of them or none.
  absl::Status Remove(const std::vector<int64_t>& numbers);

  absl::Status AppendLog(int64_t number, const JobLogLine& line);
  absl::StatusOr<std::vector<JobLogLine>> ReadLog(int64_t number);

 private:
  explicit JobStore(std::unique_ptr<SQLite::Database> db);
  // Brings the schema up to date; returns the version it had. Throws as SQLiteCpp does.
  int64_t Migrate();

  std::unique_ptr<SQLite::Database> db_;
};

}  // namespace harmony::store
