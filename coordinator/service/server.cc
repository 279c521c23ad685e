#include "coordinator/service/server.h"

#include <fcntl.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/address.h"
#include "common/rpc/channel.h"
#include "coordinator/service/access/door.h"
#include "coordinator/service/access/listeners.h"
#include "coordinator/service/access/peer_server.h"
#include "coordinator/service/attach_service.h"
#include "coordinator/service/background_work.h"
#include "coordinator/service/coordinator_service.h"

namespace harmony::service {
namespace {

constexpr rpc::TlsOptionNames kTlsNames = {"--tls-cert", "--tls-key", "--tls-client-ca"};

// gRPC has an error to say of every handshake that fails, which strangers can make as many of as
// they like: some, and then one a second.
void LogForGrpc(gpr_log_func_args* said) {
  static Mutex mutex;
  static TokenBucket lines(/*per_second=*/1, /*burst=*/20);
  MutexLock lock(mutex);
  if (!lines.Take(MonotonicClock().Now())) return;
  spdlog::warn("event=grpc message=\"{}\"", said->message);
}

// Nobody but this user may open the attach socket: what its clients share is memory.
std::unique_ptr<grpc::Server> ServePrivately(grpc::Service* service, const std::string& path) {
  unlink(path.c_str());  // of a coordinator that is gone: who has the public socket's lock has this
  grpc::ServerBuilder builder;
  rpc::ListenOnSocket(builder, path);
  builder.RegisterService(service);
  const mode_t before = umask(0177);  // gRPC makes the file; nothing else does meanwhile
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  umask(before);
  return server;
}

// What TLS needs is there, and what is there is needed.
absl::Status CheckTls(const ServerOptions& options, const AccessRules& rules) {
  const rpc::TlsPaths& tls = options.tls;
  if (options.listen.empty()) {
    if (tls.certificate.empty() && tls.key.empty() && tls.ca.empty() &&
        !rules.allows_certificates()) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        "--tls-cert, --tls-key, --tls-client-ca and --allow cert:... are about --listen HOST:PORT, "
        "which is not given");
  }
  HARMONY_RETURN_IF_ERROR(rpc::ReadTlsFiles(tls, kTlsNames, absl::Now()).status());
  if (rules.allows_certificates()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--listen: nobody may call, for no certificate is allowed anything: add --allow "
      "cert:NAME=read or --allow cert:NAME=change");
}

// A client that gives up between poll and accept must not block the thread that accepts.
absl::Status DoNotBlock(int listening) {
  const int flags = fcntl(listening, F_GETFL);
  if (flags >= 0 && fcntl(listening, F_SETFL, flags | O_NONBLOCK) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "preparing to accept connections");
}

class ServerImpl : public CoordinatorServer {
 public:
  ServerImpl(Coordinator* coordinator, Mailbox* mailbox)
      : local_service_(
            MakeCoordinatorService(coordinator, mailbox, &background_, /*remote=*/false)),
        remote_service_(
            MakeCoordinatorService(coordinator, mailbox, &background_, /*remote=*/true)),
        attach_service_(MakeAttachService(coordinator, mailbox)) {}
  ~ServerImpl() override {
    door_ = nullptr;
    if (attach_) attach_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
    unlink(attach_path_.c_str());
  }

  absl::Status Start(const ServerOptions& options, ipc::UniqueFd handed) {
    gpr_set_log_function(LogForGrpc);
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    absl::StatusOr<Others> others = WhoElse(options);
    if (!others.ok() && options.is_successor) {
      spdlog::error("event=others_kept_out message=\"{}\"", std::string(others.status().message()));
      ServerOptions alone;
      others = WhoElse(alone);
    }
    if (!others.ok()) return others.status();
    DoorOptions door = std::move(others->door);
    address_ = others->address;
    attach_path_ = rpc::AttachSocketOf(options.socket_path);
    attach_ = ServePrivately(attach_service_.get(), attach_path_);
    if (attach_ == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat("cannot listen on ", attach_path_));
    }
    // The last: whoever can connect is served.
    door.local = std::move(handed);
    if (door.local.valid()) {
      HARMONY_RETURN_IF_ERROR(DoNotBlock(door.local.get()));
      if (others->group) {
        HARMONY_RETURN_IF_ERROR(OpenToGroup(options.socket_path, *others->group));
      }
    } else {
      HARMONY_ASSIGN_OR_RETURN(door.local, ListenLocally(options.socket_path, others->group));
    }
    door.local_services = {local_service_.get()};
    door.remote_services = {remote_service_.get()};
    HARMONY_ASSIGN_OR_RETURN(door_, Door::Open(std::move(door), MonotonicClock()));
    return absl::OkStatus();
  }

  std::string address() const override { return address_; }

 private:
  // Whom the options let in beside the owner.
  struct Others {
    DoorOptions door;
    std::optional<gid_t> group;
    std::string address;
  };

  static absl::StatusOr<Others> WhoElse(const ServerOptions& options) {
    Others others;
    HARMONY_ASSIGN_OR_RETURN(others.door.rules, AccessRules::Parse(options.allow, geteuid()));
    HARMONY_RETURN_IF_ERROR(CheckTls(options, others.door.rules));
    if (!options.socket_group.empty()) {
      HARMONY_ASSIGN_OR_RETURN(others.group, GroupOption(options.socket_group));
    }
    if (options.listen.empty()) return others;
    HARMONY_ASSIGN_OR_RETURN(rpc::HostPort where, rpc::ParseHostPort(options.listen, "--listen"));
    HARMONY_ASSIGN_OR_RETURN(TcpListener listener, ListenOnTcp(where));
    where.port = listener.port;
    others.address = where.ToString();
    others.door.remote = std::move(listener.fd);
    others.door.certificates = MakeCertificates(options.tls);
    return others;
  }

  static absl::StatusOr<gid_t> GroupOption(const std::string& name) {
    absl::StatusOr<gid_t> group = FindGroup(name);
    if (!group.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--socket-group: ", group.status().message()));
    }
    return group;
  }

  BackgroundWork background_;  // of both public services together
  std::unique_ptr<grpc::Service> local_service_, remote_service_, attach_service_;
  std::string attach_path_, address_;
  std::unique_ptr<grpc::Server> attach_;
  std::unique_ptr<Door> door_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    const ServerOptions& options, ipc::UniqueFd handed, Coordinator* coordinator,
    Mailbox* mailbox) {
  auto server = std::make_unique<ServerImpl>(coordinator, mailbox);
  HARMONY_RETURN_IF_ERROR(server->Start(options, std::move(handed)));
  return std::unique_ptr<CoordinatorServer>(std::move(server));
}

}  // namespace harmony::service
