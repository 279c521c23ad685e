#pragma once

// Files and directories that appear whole or not at all: written under a temporary name beside the
// final one, synced, renamed, and the folder synced. After a crash the old content is there, or the
// new one; a left-over temporary name contains kPartialInfix.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/file.h"

namespace harmony::io {

// What the names of files and directories that are being written have in them.
inline constexpr char kPartialInfix[] = ".partial-";

// A file being written. Destroyed without Commit, it removes what it wrote.
class AtomicFile {
 public:
  static absl::StatusOr<AtomicFile> Create(const std::string& path);
  AtomicFile(AtomicFile&&) = default;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  File& file() { return file_; }
  const std::string& path() const { return path_; }
  // Syncs and renames over `path`.
  absl::Status Commit();

 private:
  AtomicFile(File file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}

  File file_;  // open exactly until Commit
  std::string path_;
};

absl::Status WriteFileAtomically(const std::string& path, absl::string_view contents);

// A directory being filled, under temporary_path(). Destroyed without Commit, it is removed with
// all its files.
class AtomicDirectory {
 public:
  // Creates missing parents as well.
  static absl::StatusOr<AtomicDirectory> Create(const std::string& path);
  AtomicDirectory(AtomicDirectory&& other) noexcept;
  AtomicDirectory& operator=(AtomicDirectory&&) = delete;
  ~AtomicDirectory();

  const std::string& temporary_path() const { return temporary_path_; }
  // Renames to the final path; what was there before is exchanged atomically and then removed.
  // Files in it must have been synced by their writers.
  absl::Status Commit();

 private:
  AtomicDirectory(std::string temporary_path, std::string path);

  std::string temporary_path_;  // empty after Commit
  std::string path_;
};

}  // namespace harmony::io
