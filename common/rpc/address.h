#pragma once

// Where the coordinator listens. Unix-domain sockets only: TCP needs TLS, which is not built yet,
// so TCP addresses are refused by name. No gRPC in here.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace harmony::rpc {

// The socket to use: `option` (of --socket) when it is not empty, else $HARMONY_SOCKET, else
// $XDG_RUNTIME_DIR/harmony/coordinator.sock, else ~/.harmony/coordinator.sock. An absolute path
// without a scheme; "unix:PATH" and relative paths are accepted as input. InvalidArgument for TCP
// addresses and for paths that a socket address cannot hold.
absl::StatusOr<std::string> ResolveSocketPath(absl::string_view option);

// Makes the socket's folder, for this user only (0700), when it is missing.
absl::Status MakeSocketFolder(absl::string_view socket_path);

// "unix:PATH", what gRPC takes for channels and servers.
std::string SocketTarget(absl::string_view socket_path);

}  // namespace harmony::rpc
