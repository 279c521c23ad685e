#include "coordinator/service/server_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/io/file.h"

namespace harmony::service {
namespace {

// The number in the lock file, for the message.
std::string HolderOf(int fd) {
  char text[32] = {};
  const ssize_t size = pread(fd, text, sizeof(text) - 1, 0);
  return size > 0 ? absl::StrCat(" (process ", text, ")") : "";
}

// A holder that leaves removes the file: what was locked must still be what the name stands for.
bool IsStillNamed(int fd, const std::string& path) {
  struct stat by_fd = {}, by_name = {};
  return fstat(fd, &by_fd) == 0 && stat(path.c_str(), &by_name) == 0 &&
         by_fd.st_ino == by_name.st_ino && by_fd.st_dev == by_name.st_dev;
}

}  // namespace

absl::StatusOr<ServerLock> ServerLock::Acquire(const std::string& socket_path, bool own_socket) {
  const std::string path = socket_path + ".lock";
  for (;;) {
    ipc::UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!fd.valid()) return io::ErrnoStatus(errno, "open", path);
    if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return io::ErrnoStatus(errno, "lock", path);
      return absl::FailedPreconditionError(
          absl::StrCat("another coordinator", HolderOf(fd.get()), " already serves ", socket_path));
    }
    if (!IsStillNamed(fd.get(), path)) continue;
    const std::string pid = std::to_string(getpid());
    if (ftruncate(fd.get(), 0) != 0 ||
        pwrite(fd.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
      return io::ErrnoStatus(errno, "write", path);
    }
    if (own_socket && unlink(socket_path.c_str()) != 0 && errno != ENOENT) {
      return io::ErrnoStatus(errno, "remove", socket_path);
    }
    return ServerLock(std::move(fd), socket_path, own_socket);
  }
}

ServerLock::~ServerLock() {
  if (!fd_.valid()) return;
  if (own_socket_) unlink(socket_path_.c_str());
  unlink((socket_path_ + ".lock").c_str());
}

}  // namespace harmony::service
