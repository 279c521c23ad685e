#include "coordinator/service/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>
#include <sys/stat.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
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
    if (server_) server_->Shutdown(std::chrono::system_clock::now() + kGrace);
  }

  bool Start(const std::string& socket_path) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    rpc::ListenOnSocket(builder, socket_path);
    builder.RegisterService(public_service_.get());
    builder.RegisterService(attach_service_.get());
    server_ = builder.BuildAndStart();
    return server_ != nullptr;
  }

 private:
  std::unique_ptr<grpc::Service> public_service_, attach_service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    const std::string& socket_path, Coordinator* coordinator, Mailbox* mailbox) {
  auto server = std::make_unique<ServerImpl>(coordinator, mailbox);
  if (!server->Start(socket_path)) {
    return absl::FailedPreconditionError(absl::StrCat("cannot listen on ", socket_path));
  }
  chmod(socket_path.c_str(), 0600);
  return std::unique_ptr<CoordinatorServer>(std::move(server));
}

}  // namespace harmony::service
