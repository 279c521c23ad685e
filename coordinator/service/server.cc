#include "coordinator/service/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>
#include <sys/stat.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/socket_acceptor.h"
#include "coordinator/service/attach_service.h"
#include "coordinator/service/coordinator_service.h"

namespace harmony::service {
namespace {

constexpr std::chrono::milliseconds kGrace{300};

class ServerImpl : public CoordinatorServer {
 public:
  ServerImpl(Coordinator* coordinator, Mailbox* mailbox)
      : public_service_(MakeCoordinatorService(coordinator, mailbox)),
        attach_service_(MakeAttachService(coordinator, mailbox)) {}
  ~ServerImpl() override {
    acceptor_.reset();
    if (server_) server_->Shutdown(std::chrono::system_clock::now() + kGrace);
  }

  absl::Status Start(const std::string& socket_path, ipc::UniqueFd handed) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    if (handed.valid()) {
      acceptor_ = std::make_unique<rpc::SocketAcceptor>(builder, std::move(handed));
    } else {
      rpc::ListenOnSocket(builder, socket_path);
    }
    builder.RegisterService(public_service_.get());
    builder.RegisterService(attach_service_.get());
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat("cannot listen on ", socket_path));
    }
    if (acceptor_ != nullptr) return acceptor_->Start();
    chmod(socket_path.c_str(), 0600);
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<grpc::Service> public_service_, attach_service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<rpc::SocketAcceptor> acceptor_;  // of a socket that was handed to us
};

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    const std::string& socket_path, ipc::UniqueFd handed, Coordinator* coordinator,
    Mailbox* mailbox) {
  auto server = std::make_unique<ServerImpl>(coordinator, mailbox);
  HARMONY_RETURN_IF_ERROR(server->Start(socket_path, std::move(handed)));
  return std::unique_ptr<CoordinatorServer>(std::move(server));
}

}  // namespace harmony::service
