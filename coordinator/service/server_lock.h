#pragma once

// The right to listen on a socket: a lock file beside it. Without the lock a socket file is another
// coordinator's; with it, it is stale.

#include <string>

#include "absl/status/statusor.h"
#include "common/ipc/fd_passing.h"

namespace harmony::service {

class ServerLock {
 public:
  // Takes `socket_path`.lock. `own_socket`: the socket is made by the holder, who removes it at the
  // end, and a stale one now; else it is kept by who made it. FailedPrecondition names the socket
  // and who has it.
  static absl::StatusOr<ServerLock> Acquire(const std::string& socket_path, bool own_socket = true);
  ServerLock(ServerLock&&) = default;
  // Removes lock file and, if its own, socket.
  ~ServerLock();

 private:
  ServerLock(ipc::UniqueFd fd, std::string socket_path, bool own_socket)
      : fd_(std::move(fd)), socket_path_(std::move(socket_path)), own_socket_(own_socket) {}
  ipc::UniqueFd fd_;
  std::string socket_path_;
  bool own_socket_;
};

}  // namespace harmony::service
