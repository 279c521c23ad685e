#pragma once

// The gRPC server of one peer: of a user of this machine, or of a remote address. It listens
// nowhere; connections are handed to it by who knows that they are the peer's (door.h). So each
// call is known to be the peer's, and what a peer can take of threads and memory is bounded.

#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/rpc/certificates.h"
#include "coordinator/service/access/limits.h"
#include "coordinator/service/access/rules.h"

namespace harmony::service {

// Calls that are under way when a server of this process ends have so long to end by themselves;
// then gRPC cancels them.
inline constexpr std::chrono::milliseconds kShutdownGrace{300};

// Who is at the other end of a connection, as far as the connection itself says.
struct Peer {
  std::string name;              // "ann (uid 1001)", "10.0.0.7"; of one peer always the same
  std::optional<Access> access;  // nothing: each call's certificate says

  bool remote() const { return !access.has_value(); }
};

struct PeerServerOptions {
  Peer peer;
  const AccessRules* rules = nullptr;
  // Outlive the server.
  std::vector<grpc::Service*> services;
  // Of a remote peer; MakeCertificates.
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> certificates;
  // The peer goes on calling though its calls are refused. Any thread.
  std::function<void()> on_cut_off;
};

class PeerServer {
 public:
  static absl::StatusOr<std::unique_ptr<PeerServer>> Start(const PeerServerOptions& options,
                                                           const Clock& clock);
  ~PeerServer();  // ends its calls

  // Whether one more connection may be handed over. Any thread.
  bool Admit(int open);
  // Takes over a connection, with its descriptor.
  void Take(int listener, int connection);

  struct Account {
    explicit Account(const PeerLimits& limits) : account(limits) {}
    Mutex mutex;
    PeerAccount account ABSL_GUARDED_BY(mutex);
  };

 private:
  PeerServer(std::shared_ptr<Account> account, const Clock& clock)
      : account_(std::move(account)), clock_(clock) {}

  const std::shared_ptr<Account> account_;  // with the gate of the calls
  const Clock& clock_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
};

// What all servers of remote peers show and ask for. The files have been checked
// (common/rpc/certificates.h), and are read again when they change.
std::shared_ptr<grpc::experimental::CertificateProviderInterface> MakeCertificates(
    const rpc::TlsPaths& files);

}  // namespace harmony::service
