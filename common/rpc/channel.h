#pragma once

// Channels and servers over the coordinator's Unix-domain socket, with the same limits on both
// sides: large messages (a window of commands, a timeline) and whole error messages fit.

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace grpc {
class Channel;
class ServerBuilder;
}  // namespace grpc

namespace harmony::rpc {

// A channel of its own (connections are not shared with other channels of the process), which
// connects when first used and tries again quickly (50 ms to 1 s) after a failure.
std::shared_ptr<grpc::Channel> MakeChannel(absl::string_view socket_path);

// The limits of a server, however it listens.
void SetServerLimits(grpc::ServerBuilder& builder);

// Makes the server listen there, with those limits. The caller holds the lock file beside the
// socket and has removed a stale socket.
void ListenOnSocket(grpc::ServerBuilder& builder, absl::string_view socket_path);

}  // namespace harmony::rpc
