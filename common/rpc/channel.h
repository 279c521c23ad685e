#pragma once

// Channels to a coordinator: over a Unix-domain socket of this machine, or over TCP with TLS on
// both sides. Large answers (a timeline) and whole error messages fit.

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "common/rpc/certificates.h"

namespace grpc {
class Channel;
class ServerBuilder;
}  // namespace grpc

namespace harmony::rpc {

// The limits of the public service; on the attach socket, a request is as long as an answer.
inline constexpr int kMostAnswerBytes = 256 << 20;
inline constexpr int kMostRequestBytes = 16 << 20;

// How often either side of a connection between machines asks whether the other is there, and how
// long it waits for the answer.
inline constexpr int kKeepaliveMillis = 30'000, kKeepaliveTimeoutMillis = 20'000;

// Where a coordinator is.
struct Endpoint {
  std::string socket_path;  // of a Unix-domain socket; empty: the address
  std::string address;      // HOST:PORT
  TlsTexts tls;             // with the address

  bool remote() const { return socket_path.empty(); }
  const std::string& name() const { return remote() ? address : socket_path; }
};
Endpoint SocketEndpoint(absl::string_view socket_path);

// A channel of its own (connections are not shared with other channels of the process), which
// connects when first used and tries again quickly (50 ms to 1 s) after a failure.
std::shared_ptr<grpc::Channel> MakeChannel(const Endpoint& endpoint);

// Makes the server listen there, for processes of ours: anybody who may open the socket may call
// it. The caller holds the lock file beside the socket and has removed a stale socket.
void ListenOnSocket(grpc::ServerBuilder& builder, absl::string_view socket_path);

}  // namespace harmony::rpc
