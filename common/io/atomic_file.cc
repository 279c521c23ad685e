#include "common/io/atomic_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "common/base/status.h"

namespace harmony::io {
namespace {

// Unique among the processes and threads of this machine.
std::string TemporaryName(absl::string_view path) {
  static std::atomic<int> counter{0};
  return absl::StrCat(path, kPartialInfix, getpid(), "-", counter.fetch_add(1));
}

}  // namespace

absl::StatusOr<AtomicFile> AtomicFile::Create(const std::string& path) {
  std::string temporary = TemporaryName(path);
  // A namesake can only be what a dead process of the same id left behind.
  unlink(temporary.c_str());
  HARMONY_ASSIGN_OR_RETURN(File file, File::CreateNew(temporary));
  return AtomicFile(std::move(file), path);
}

AtomicFile::~AtomicFile() {
  if (file_.is_open()) unlink(file_.path().c_str());
}

absl::Status AtomicFile::Commit() {
  HARMONY_RETURN_IF_ERROR(file_.Sync());
  if (rename(file_.path().c_str(), path_.c_str()) != 0) {
    return ErrnoStatus(errno, "cannot rename into place", path_);
  }
  file_ = File();
  return SyncDirectory(ParentDirectory(path_));
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view contents) {
  HARMONY_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  HARMONY_RETURN_IF_ERROR(
      file.file().WriteAt(0, contents.data(), static_cast<int64_t>(contents.size())));
  return file.Commit();
}

AtomicDirectory::AtomicDirectory(std::string temporary_path, std::string path)
    : temporary_path_(std::move(temporary_path)), path_(std::move(path)) {}

AtomicDirectory::AtomicDirectory(AtomicDirectory&& other) noexcept
    : temporary_path_(std::exchange(other.temporary_path_, "")), path_(std::move(other.path_)) {}

AtomicDirectory::~AtomicDirectory() {
  std::error_code ignored;  // nothing better to do with a left-over than to leave it
  if (!temporary_path_.empty()) std::filesystem::remove_all(temporary_path_, ignored);
}

absl::StatusOr<AtomicDirectory> AtomicDirectory::Create(const std::string& path) {
  std::string final_path = path;
  while (final_path.size() > 1 && final_path.back() == '/') final_path.pop_back();
  const std::string temporary = TemporaryName(final_path);
  std::error_code error;
  std::filesystem::remove_all(temporary, error);
  std::filesystem::create_directories(temporary, error);
  if (error) return ErrnoStatus(error.value(), "cannot create the directory", temporary);
  return AtomicDirectory(temporary, std::move(final_path));
}

absl::Status AtomicDirectory::Commit() {
  HARMONY_RETURN_IF_ERROR(SyncDirectory(temporary_path_));
  std::error_code error;
  const bool replaces = std::filesystem::exists(std::filesystem::symlink_status(path_, error));
  const unsigned flags = replaces ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (renameat2(AT_FDCWD, temporary_path_.c_str(), AT_FDCWD, path_.c_str(), flags) != 0) {
    // Some file systems know neither flag: then there is a moment without the old directory.
    if (errno != EINVAL && errno != ENOSYS) {
      return ErrnoStatus(errno, "cannot rename into place", path_);
    }
    if (replaces) std::filesystem::remove_all(path_, error);
    if (rename(temporary_path_.c_str(), path_.c_str()) != 0) {
      return ErrnoStatus(errno, "cannot rename into place", path_);
    }
    temporary_path_.clear();
    return SyncDirectory(ParentDirectory(path_));
  }
  const std::string old = std::exchange(temporary_path_, "");
  // The old one goes only when the new one would survive a loss of power.
  HARMONY_RETURN_IF_ERROR(SyncDirectory(ParentDirectory(path_)));
  if (replaces) std::filesystem::remove_all(old, error);
  return absl::OkStatus();
}

}  // namespace harmony::io
