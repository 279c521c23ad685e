#include "coordinator/service/access/peer_server.h"

#include <grpcpp/resource_quota.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"

namespace harmony::service {
namespace {

// Of a connection that says nothing, or does not finish its handshake.
constexpr int kHandshakeMillis = 5000;
constexpr int kMostStreams = 32;  // of a connection
constexpr int kMostThreads = 40;  // of a peer; each call has one
constexpr size_t kMostMemory = 64 << 20;
constexpr int kMostMetadataBytes = 16 << 10;
// Certificates that were renewed are in use then, without a restart.
constexpr unsigned kSecondsBetweenLooksAtFiles = 10;

// The names that a certificate proves, by the kinds of subject alternative names that are names;
// the common name counts where there are none.
std::vector<std::string> NamesOf(const grpc::AuthContext& context) {
  std::vector<std::string> names;
  for (const char* property : {"peer_dns", "peer_email", "peer_uri", "x509_common_name"}) {
    if (!names.empty() && property == absl::string_view("x509_common_name")) break;
    for (const grpc::string_ref& value : context.FindPropertyValues(property)) {
      names.emplace_back(value.data(), value.size());
    }
  }
  return names;
}

// Decides about each call, of whatever service, before its message is read.
class CallGate : public grpc::AuthMetadataProcessor {
 public:
  CallGate(const PeerServerOptions& options, std::shared_ptr<PeerServer::Account> account,
           const Clock& clock)
      : peer_(options.peer),
        rules_(options.rules),
        on_cut_off_(options.on_cut_off),
        account_(std::move(account)),
        clock_(clock) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    const auto found = metadata.find(":path");
    const std::string path =
        found == metadata.end() ? "" : std::string(found->second.data(), found->second.size());
    return rpc::ToGrpcStatus(Judge(path, *context));
  }

 private:
  absl::Status Judge(const std::string& path, const grpc::AuthContext& context) {
    HARMONY_RETURN_IF_ERROR(CheckRate(path));
    std::vector<std::string> names;
    if (peer_.remote()) names = NamesOf(context);
    const Access access = peer_.remote() ? rules_->OfCertificate(names) : *peer_.access;
    const Access needed = NeededFor(path);
    const std::string who =
        peer_.remote() ? absl::StrCat("certificate ", absl::CHexEscape(absl::StrJoin(names, ", ")))
                       : peer_.name;
    if (access < needed) return Refused(who, names, access, path);
    if (needed == Access::kChange) {
      spdlog::info("event=call method={} by=\"{}\"{}", path.substr(path.rfind('/') + 1), who,
                   peer_.remote() ? absl::StrCat(" from=", peer_.name) : "");
    }
    return absl::OkStatus();
  }

  absl::Status CheckRate(const std::string& path) {
    Verdict verdict;
    {
      MutexLock lock(account_->mutex);
      verdict = account_->account.Call(clock_.Now(), WeightOf(path));
    }
    if (verdict == Verdict::kServe) return absl::OkStatus();
    if (verdict == Verdict::kCutOff) on_cut_off_();
    return absl::ResourceExhaustedError(absl::StrCat(rpc::kTooManyCalls, " from ", peer_.name,
                                                     ": wait a second, and ask less often"));
  }

  absl::Status Refused(const std::string& who, const std::vector<std::string>& names, Access access,
                       const std::string& path) const {
    const std::string method = path.substr(path.rfind('/') + 1);
    const std::string example =
        peer_.remote() ? absl::StrCat("cert:", names.empty() ? "NAME" : names.front())
                       : absl::StrCat("user:", peer_.name.substr(0, peer_.name.find(' ')));
    if (access == Access::kNone) {
      return absl::PermissionDeniedError(
          absl::StrCat(who,
                       ": no rule allows this name anything; whoever runs the coordinator can: "
                       "`harmony up --allow ",
                       example, "=read` (or =change)"));
    }
    return absl::PermissionDeniedError(absl::StrCat(
        who, ": may read, and ", method,
        " is more than that; whoever runs the coordinator can allow it: `harmony up --allow ",
        example, "=change`"));
  }

  const Peer peer_;
  const AccessRules* const rules_;
  const std::function<void()> on_cut_off_;
  const std::shared_ptr<PeerServer::Account> account_;
  const Clock& clock_;
};

std::shared_ptr<grpc::ServerCredentials> CredentialsOf(const PeerServerOptions& options) {
  // Local credentials do nothing to the bytes: any client of a Unix socket connects. Only with
  // credentials does gRPC have calls judged.
  if (!options.peer.remote()) return grpc::experimental::LocalServerCredentials(UDS);
  grpc::experimental::TlsServerCredentialsOptions tls(options.certificates);
  tls.watch_root_certs();
  tls.watch_identity_key_cert_pairs();
  tls.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(tls);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerServer>> PeerServer::Start(const PeerServerOptions& options,
                                                              const Clock& clock) {
  const bool remote = options.peer.remote();
  auto account = std::make_shared<Account>(remote ? RemoteLimits() : PeerLimits());
  std::unique_ptr<PeerServer> peer(new PeerServer(account, clock));
  const std::shared_ptr<grpc::ServerCredentials> credentials = CredentialsOf(options);
  credentials->SetAuthMetadataProcessor(
      std::make_shared<CallGate>(options, std::move(account), clock));
  grpc::ResourceQuota quota("harmony-peer");
  quota.SetMaxThreads(kMostThreads).Resize(kMostMemory);
  grpc::ServerBuilder builder;
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(rpc::kMostRequestBytes);
  builder.SetMaxSendMessageSize(rpc::kMostAnswerBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMostMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMillis);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostStreams);
  if (remote) {  // a machine that is gone keeps no connection
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, rpc::kKeepaliveMillis);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, rpc::kKeepaliveTimeoutMillis);
    // A client that asks whether this server is there is no nuisance.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               rpc::kKeepaliveMillis / 2);
  }
  for (grpc::Service* const service : options.services) builder.RegisterService(service);
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  peer->acceptor_ =
      builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, credentials);
  peer->server_ = builder.BuildAndStart();
  if (peer->server_ == nullptr) {
    return absl::InternalError(absl::StrCat("no server can be made for ", options.peer.name));
  }
  return peer;
}

PeerServer::~PeerServer() {
  if (server_) server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
}

bool PeerServer::Admit(int open) {
  MutexLock lock(account_->mutex);
  return account_->account.Connect(clock_.Now(), open);
}

void PeerServer::Take(int listener, int connection) {
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.listener_fd = listener;
  parameters.fd = connection;
  acceptor_->HandleNewConnection(&parameters);
}

std::shared_ptr<grpc::experimental::CertificateProviderInterface> MakeCertificates(
    const rpc::TlsPaths& files) {
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      files.key, files.certificate, files.ca, kSecondsBetweenLooksAtFiles);
}

}  // namespace harmony::service
