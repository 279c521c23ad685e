#include "coordinator/service/processes/process_handle.h"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace harmony::service {

absl::StatusOr<ProcessHandle> ProcessHandle::Open(int pid) {
  ProcessHandle handle;
  handle.pid_ = pid;
  handle.fd_ = ipc::UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!handle.fd_.valid()) {
    return absl::NotFoundError(
        absl::StrCat("process ", pid, ": ", std::generic_category().message(errno)));
  }
  // gRPC does not tell who is at the other end of the socket: ask for the owner of the process
  // named.
  struct stat info = {};
  if (stat(absl::StrCat("/proc/", pid).c_str(), &info) != 0 || handle.HasExited()) {
    return absl::NotFoundError(absl::StrCat("process ", pid, " is gone"));
  }
  if (info.st_uid != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("process ", pid, " belongs to user ", info.st_uid, ", not ", geteuid()));
  }
  return handle;
}

void ProcessHandle::Kill() const {
  if (fd_.valid()) syscall(SYS_pidfd_send_signal, fd_.get(), SIGKILL, nullptr, 0);
}

bool ProcessHandle::HasExited() const {
  if (!fd_.valid()) return true;
  pollfd poll_fd = {fd_.get(), POLLIN, 0};
  return poll(&poll_fd, 1, 0) == 1;
}

}  // namespace harmony::service
