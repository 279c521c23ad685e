#include "common/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/status.h"
#include "common/base/units.h"

namespace harmony::io {

absl::Status ErrnoStatus(int error, absl::string_view what, absl::string_view path) {
  const std::string message =
      absl::StrCat(path, ": ", what, ": ", std::generic_category().message(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EEXIST:
    case ENOTEMPTY:
      return absl::AlreadyExistsError(message);
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return absl::FailedPreconditionError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      opened_(std::move(other.opened_)) {}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) close(fd_);
    fd_ = std::exchange(other.fd_, -1);
    path_ = std::move(other.path_);
    opened_ = std::move(other.opened_);
  }
  return *this;
}

File::~File() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<File> File::OpenForReading(const std::string& path) {
  // Not blocking: a FIFO in the place of a file must not hang us.
  File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), path);
  if (!file.is_open()) return ErrnoStatus(errno, "cannot open", path);
  HARMONY_ASSIGN_OR_RETURN(file.opened_, file.VersionNow());
  return file;
}

absl::StatusOr<File> File::CreateNew(const std::string& path) {
  File file(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666), path);
  if (!file.is_open()) return ErrnoStatus(errno, "cannot create", path);
  return file;
}

absl::StatusOr<File::Version> File::VersionNow() const {
  struct stat info;
  if (fstat(fd_, &info) != 0) return ErrnoStatus(errno, "cannot stat", path_);
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path_, ": is not a regular file"));
  }
  return Version(info.st_size, int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec);
}

absl::StatusOr<int64_t> File::Size() const {
  HARMONY_ASSIGN_OR_RETURN(const Version now, VersionNow());
  return now.first;
}

bool File::IsUnchanged() const {
  const absl::StatusOr<Version> now = VersionNow();
  return now.ok() && *now == opened_;
}

absl::Status File::ReadAt(int64_t offset, void* data, int64_t size) const {
  char* out = static_cast<char*>(data);
  while (size > 0) {
    // One call moves at most 2 GiB.
    const ssize_t n = pread(fd_, out, std::min<int64_t>(size, int64_t{1} << 30), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "cannot read", path_);
    if (n == 0) {
      return absl::DataLossError(
          absl::StrCat(path_, ": ends at byte ", offset, ", ", size, " bytes too early"));
    }
    out += n;
    offset += n;
    size -= n;
  }
  return absl::OkStatus();
}

absl::Status File::WriteAt(int64_t offset, const void* data, int64_t size) {
  const char* in = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = pwrite(fd_, in, std::min<int64_t>(size, int64_t{1} << 30), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "cannot write", path_);
    in += n;
    offset += n;
    size -= n;
  }
  return absl::OkStatus();
}

absl::Status File::Reserve(int64_t size) {
  if (ftruncate(fd_, size) != 0) return ErrnoStatus(errno, "cannot set the size", path_);
  if (size > 0 && fallocate(fd_, 0, 0, size) != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
    return ErrnoStatus(errno, absl::StrCat("cannot reserve ", FormatBytesExact(Bytes(size))),
                       path_);
  }
  return absl::OkStatus();
}

absl::Status File::Sync() {
  if (fsync(fd_) != 0) return ErrnoStatus(errno, "cannot sync", path_);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t limit) {
  HARMONY_ASSIGN_OR_RETURN(const File file, File::OpenForReading(path));
  HARMONY_ASSIGN_OR_RETURN(const int64_t size, file.Size());
  if (size > limit) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is ", FormatBytes(Bytes(size)),
                                                   ", more than the ", FormatBytes(Bytes(limit)),
                                                   " such a file may have"));
  }
  std::string text(static_cast<size_t>(size), '\0');
  HARMONY_RETURN_IF_ERROR(file.ReadAt(0, text.data(), size));
  return text;
}

absl::Status SyncDirectory(const std::string& path) {
  File directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), path);
  if (!directory.is_open()) return ErrnoStatus(errno, "cannot open", path);
  return directory.Sync();
}

bool IsGitLfsPointer(absl::string_view start) {
  return absl::StartsWith(start, "version https://git-lfs");
}

std::string ParentDirectory(absl::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos) return ".";
  return std::string(slash == 0 ? "/" : path.substr(0, slash));
}

std::string JoinPath(absl::string_view directory, absl::string_view name) {
  if (directory.empty() || (!name.empty() && name[0] == '/')) return std::string(name);
  return absl::StrCat(directory, directory.back() == '/' ? "" : "/", name);
}

}  // namespace harmony::io
