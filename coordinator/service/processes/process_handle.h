#pragma once

// A process that has attached, held by pidfd: it can be killed, and its death confirmed, without
// ever meeting another process that got the same number.

#include <string>

#include "absl/status/statusor.h"
#include "common/ipc/fd_passing.h"

namespace harmony::service {

class ProcessHandle {
 public:
  ProcessHandle() = default;
  // PermissionDenied when the process belongs to another user, NotFound when there is none.
  static absl::StatusOr<ProcessHandle> Open(int pid);

  int pid() const { return pid_; }
  // SIGKILL; fine when it is gone already.
  void Kill() const;
  // For shared memory only death is a fence: true once the process runs no more.
  bool HasExited() const;

 private:
  int pid_ = 0;
  ipc::UniqueFd fd_;
};

}  // namespace harmony::service
