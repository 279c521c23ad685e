#include "coordinator/store/database_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace harmony::store {
namespace {

namespace fs = std::filesystem;

// Of SQLite's file format, "Locking bytes": all of its locks lie on these bytes of the database.
constexpr off_t kLockBytes = 0x40000000;
constexpr off_t kLockByteCount = 512;

// A log is begun anew after some thousand pages, and a copy of that takes milliseconds.
constexpr int kTries = 20;
constexpr std::chrono::milliseconds kPause(25);

// Of SQLite's file format, "The WAL header": numbers in it change whenever the log is begun anew,
// which overwrites what it held.
constexpr size_t kLogHeaderSize = 32;

// Empty where there is no log.
std::string LogHeader(const std::string& path) {
  std::string header(kLogHeaderSize, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(header.data(), static_cast<std::streamsize>(header.size()));
  header.resize(static_cast<size_t>(file.gcount()));
  return header;
}

// Asks, and takes none: who has a lock of SQLite's on the database; 0: nobody. -1: a process that
// has no number here, in another container or on another machine.
int64_t LockHolder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = kLockBytes;
  lock.l_len = kLockByteCount;
  const bool held = fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  close(fd);
  if (!held) return 0;
  return lock.l_pid > 0 ? lock.l_pid : -1;
}

// A file that is not there (any more) leaves none.
absl::Status CopyFile(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::remove(to, error);
  if (fs::copy_file(from, to, error)) return absl::OkStatus();
  if (error == std::errc::no_such_file_or_directory) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("job database: copying ", from, " to ", to, ": ", error.message()));
}

}  // namespace

absl::StatusOr<DatabaseCopy> DatabaseCopy::Make(const std::string& state_dir) {
  std::error_code error;
  std::string folder = (fs::temp_directory_path(error) / "harmony-jobs.XXXXXX").string();
  if (error || mkdtemp(folder.data()) == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("making a directory for a copy of the job database, ", folder, ": ",
                     error ? error.message() : std::generic_category().message(errno)));
  }
  DatabaseCopy copy(folder);
  const std::string from = absl::StrCat(state_dir, "/", kDatabaseName);
  const std::string to = absl::StrCat(folder, "/", kDatabaseName);
  copy.holder_ = LockHolder(from);
  // A commit appends to the log, whose checksums end a copy of it at its last whole commit. Pages
  // that are moved into the database meanwhile are in a log that is copied after it, unless that
  // was begun anew: then all is read again. Times of files were tried instead, but are too coarse.
  for (int i = 0; i < kTries; ++i) {
    if (i > 0) std::this_thread::sleep_for(kPause);
    const std::string before = LogHeader(from + "-wal");
    HARMONY_RETURN_IF_ERROR(CopyFile(from, to));
    HARMONY_RETURN_IF_ERROR(CopyFile(from + "-wal", to + "-wal"));
    if (LogHeader(from + "-wal") == before) return copy;
  }
  return absl::UnavailableError(
      absl::StrCat("job database: ", from, " changes all the time: try again"));
}

DatabaseCopy::~DatabaseCopy() {
  std::error_code error;
  if (!folder_.empty()) fs::remove_all(folder_, error);
}

}  // namespace harmony::store
