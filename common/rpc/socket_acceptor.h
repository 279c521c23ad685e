#pragma once

// A gRPC server on a socket that listens already, as systemd hands one over: connections that come
// while no server is there wait in the socket for the next.

#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "common/ipc/fd_passing.h"

namespace grpc {
class ServerBuilder;
namespace experimental {
class ExternalConnectionAcceptor;
}  // namespace experimental
}  // namespace grpc

namespace harmony::rpc {

// Owner: who owns the server; made before the server, and destroyed before it is shut down.
// A thread of its own accepts; what it has not accepted when it ends stays in the socket.
class SocketAcceptor {
 public:
  // With the limits of ListenOnSocket.
  SocketAcceptor(grpc::ServerBuilder& builder, ipc::UniqueFd listening);
  ~SocketAcceptor();
  SocketAcceptor(const SocketAcceptor&) = delete;
  SocketAcceptor& operator=(const SocketAcceptor&) = delete;

  // REQUIRES: the server has started.
  absl::Status Start();

 private:
  void Run();

  const ipc::UniqueFd listening_;
  const std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections_;
  ipc::UniqueFd stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace harmony::rpc
