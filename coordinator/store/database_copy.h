#pragma once

// The files of a job database, copied to be looked at.

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace harmony::store {

// Of the file in the state directory; beside it lies the log of what is not in it yet, "-wal".
inline constexpr char kDatabaseName[] = "jobs.sqlite";

// SQLite reads a database in WAL mode only under a lock, and makes files beside it. A copy needs
// neither, and a reader that is stopped half-way cannot keep a coordinator from starting. Owner:
// who looks; one thread. The folder is removed at the end.
class DatabaseCopy {
 public:
  // FailedPrecondition names what cannot be read; Unavailable when the database is written to all
  // the time. No database is fine: the folder is empty then.
  static absl::StatusOr<DatabaseCopy> Make(const std::string& state_dir);
  DatabaseCopy(DatabaseCopy&& other) noexcept
      : folder_(std::exchange(other.folder_, {})), holder_(other.holder_) {}
  ~DatabaseCopy();

  const std::string& folder() const { return folder_; }
  // The process that has the original open; 0: none.
  int64_t holder() const { return holder_; }

 private:
  explicit DatabaseCopy(std::string folder) : folder_(std::move(folder)) {}

  std::string folder_;
  int64_t holder_ = 0;
};

}  // namespace harmony::store
