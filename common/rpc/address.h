#pragma once

// Where the coordinator listens: on a Unix-domain socket for who is on its machine, on another for
// its own processes, and, with TLS only, on a TCP address. No gRPC in here.

#include <sys/socket.h>

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

// The socket beside it, for the processes that the coordinator directs. Nobody else may open it:
// what they share is memory.
std::string AttachSocketOf(absl::string_view socket_path);

// "HOST:PORT", "1.2.3.4:443", "[::1]:443".
struct HostPort {
  std::string host;
  int port = 0;  // to listen on: 0 is any

  std::string ToString() const;
};
// `what` names it in the error: "--listen".
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, absl::string_view what);

// Whose limits a TCP connection counts for: an IPv4 address, or the first 64 bits of an IPv6 one,
// which is what one machine has at its disposal.
std::string NetworkOf(const sockaddr_storage& address);

// Makes the socket's folder, for this user only (0700), when it is missing.
absl::Status MakeSocketFolder(absl::string_view socket_path);

// "unix:PATH", what gRPC takes for channels and servers.
std::string SocketTarget(absl::string_view socket_path);

}  // namespace harmony::rpc
