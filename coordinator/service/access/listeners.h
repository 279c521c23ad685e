#pragma once

// Makes the sockets that the public service is called through.

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ipc/fd_passing.h"
#include "common/rpc/address.h"

namespace harmony::service {

// The group may use the socket, too (0660), and pass through its folder, if that is ours.
// FailedPrecondition where the group cannot be given it.
absl::Status OpenToGroup(const std::string& socket_path, gid_t group);

// A Unix-domain socket that listens: for its owner only (0600), or for a group, too. Nobody can
// connect before mode and group are set.
absl::StatusOr<ipc::UniqueFd> ListenLocally(const std::string& socket_path,
                                            std::optional<gid_t> group);

struct TcpListener {
  ipc::UniqueFd fd;
  int port = 0;
};
// On the first address that the host name stands for. NotFound when it stands for none,
// FailedPrecondition where it is in use or not of this machine.
absl::StatusOr<TcpListener> ListenOnTcp(const rpc::HostPort& address);

}  // namespace harmony::service
