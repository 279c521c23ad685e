#pragma once

// The coordinator's gRPC services, each with health checking and reflection: the public one for
// users, through the door that checks them (access/door.h), and the attach service for processes
// of this set on a socket of their own.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ipc/fd_passing.h"
#include "common/rpc/certificates.h"

namespace harmony::service {

class Coordinator;
class Mailbox;

struct ServerOptions {
  std::string socket_path;   // of the public service; that of the attach service lies beside it
  std::string socket_group;  // may read through the socket, too; empty: no group
  std::string listen;        // HOST:PORT to serve with TLS on; empty: none
  rpc::TlsPaths tls;         // with `listen`
  std::vector<std::string> allow;  // as AccessRules::Parse
  // A job may be under way, which ends when no coordinator starts any more: who cannot be let in as
  // the options say (a certificate has expired, a name is not found now) is kept out instead.
  bool is_successor = false;
};

class CoordinatorServer {
 public:
  // Listens when it returns: on the socket that a service manager has `handed` to this process,
  // which stays as it is, or, where that is none, on one that it makes. Both pointers must outlive
  // it. InvalidArgument and FailedPrecondition say what is wrong with the options.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(const ServerOptions& options,
                                                                  ipc::UniqueFd handed,
                                                                  Coordinator* coordinator,
                                                                  Mailbox* mailbox);
  virtual ~CoordinatorServer() = default;  // ends all calls

  // Where it listens with TLS, with the port that it has; empty: nowhere.
  virtual std::string address() const = 0;
};

}  // namespace harmony::service
