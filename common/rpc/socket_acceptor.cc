#include "common/rpc/socket_acceptor.h"

#include <fcntl.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "common/rpc/channel.h"

namespace harmony::rpc {
namespace {

// Where no descriptor is left, connections wait; they are tried again after this.
constexpr int kPauseMs = 100;

using Connections = grpc::experimental::ExternalConnectionAcceptor;

std::unique_ptr<Connections> MakeConnections(grpc::ServerBuilder& builder) {
  SetServerLimits(builder);
  return builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
}

}  // namespace

SocketAcceptor::SocketAcceptor(grpc::ServerBuilder& builder, ipc::UniqueFd listening)
    : listening_(std::move(listening)), connections_(MakeConnections(builder)) {}

SocketAcceptor::~SocketAcceptor() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

absl::Status SocketAcceptor::Start() {
  stop_ = ipc::UniqueFd(eventfd(0, EFD_CLOEXEC));
  // A client that gives up between poll and accept must not block the thread.
  const int flags = fcntl(listening_.get(), F_GETFL);
  if (!stop_.valid() || flags < 0 || fcntl(listening_.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return absl::ErrnoToStatus(errno, "preparing to accept connections");
  }
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void SocketAcceptor::Run() {
  pollfd events[2] = {{stop_.get(), POLLIN, 0}, {listening_.get(), POLLIN, 0}};
  for (;;) {
    if (poll(events, 2, -1) < 0) continue;  // EINTR
    if (events[0].revents != 0) return;
    Connections::NewConnectionParameters connection;
    connection.listener_fd = listening_.get();
    connection.fd = accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (connection.fd >= 0) {
      connections_->HandleNewConnection(&connection);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      poll(events, 1, kPauseMs);
    }
  }
}

}  // namespace harmony::rpc
