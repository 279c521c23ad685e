#pragma once

// The right to listen on a socket: a lock file beside it. Without the lock a socket file is another
// coordinator's; with it, it is stale.

#include <string>

#include "absl/status/statusor.h"
#include "common/ipc/fd_passing.h"

namespace harmony::service {

class ServerLock {
 public:
  // Takes `socket_path`.lock and removes a stale socket. FailedPrecondition names the socket and
  // who has it.
  static absl::StatusOr<ServerLock> Acquire(const std::string& socket_path);
  ServerLock(ServerLock&&) = default;
  // Removes socket and lock file.
  ~ServerLock();

 private:
  ServerLock(ipc::UniqueFd fd, std::string socket_path)
      : fd_(std::move(fd)), socket_path_(std::move(socket_path)) {}
  ipc::UniqueFd fd_;
  std::string socket_path_;
};

}  // namespace harmony::service
