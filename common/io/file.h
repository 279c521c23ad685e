#pragma once

// Files by descriptor: whole reads and writes at offsets, and errors that name the path and what
// failed. NotFound, FailedPrecondition (permissions, kind of file) and ResourceExhausted (no space)
// are told apart; the rest is Unavailable.

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace harmony::io {

// The status for `errno` after `what` ("open", "write") failed on `path`.
absl::Status ErrnoStatus(int error, absl::string_view what, absl::string_view path);

// Owns a file descriptor. Move-only. Reads and writes at offsets are safe from several threads.
class File {
 public:
  File() = default;
  File(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  static absl::StatusOr<File> OpenForReading(const std::string& path);
  // Whether nothing has been written to the file since.
  bool IsUnchanged() const;
  // A new file; AlreadyExists is an error.
  static absl::StatusOr<File> CreateNew(const std::string& path);

  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  const std::string& path() const { return path_; }

  absl::StatusOr<int64_t> Size() const;
  // All `size` bytes, or an error; the end of the file before that is DataLoss.
  absl::Status ReadAt(int64_t offset, void* data, int64_t size) const;
  absl::Status WriteAt(int64_t offset, const void* data, int64_t size);
  // Sets the size and reserves the space, so that a full disk is found here and not half-way.
  absl::Status Reserve(int64_t size);
  absl::Status Sync();

 private:
  // Size and time of the last write, in ns.
  using Version = std::pair<int64_t, int64_t>;
  absl::StatusOr<Version> VersionNow() const;

  int fd_ = -1;
  std::string path_;
  Version opened_;  // for reading
};

// A whole regular file; InvalidArgument when it is larger than `limit` bytes.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t limit);

// What stands in the place of a large file of a git repository that was cloned without git-lfs.
bool IsGitLfsPointer(absl::string_view start);
inline constexpr char kGitLfsAdvice[] = "a git-lfs pointer, not the file itself: run git lfs pull";

// Makes entries of a directory durable (created, renamed, removed files).
absl::Status SyncDirectory(const std::string& path);

// "a/b/c" -> "a/b"; "c" -> ".".
std::string ParentDirectory(absl::string_view path);
std::string JoinPath(absl::string_view directory, absl::string_view name);

}  // namespace harmony::io
