#pragma once

// The gRPC server of the coordinator: both services, health checking, reflection.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/ipc/fd_passing.h"

namespace harmony::service {

class Coordinator;
class Mailbox;

class CoordinatorServer {
 public:
  // Listens when it returns: on the socket that a service manager has `handed` to this process,
  // which stays as it is, or, where that is none, on one that it makes. Both pointers must outlive
  // it.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(const std::string& socket_path,
                                                                  ipc::UniqueFd handed,
                                                                  Coordinator* coordinator,
                                                                  Mailbox* mailbox);
  virtual ~CoordinatorServer() = default;  // ends all calls
};

}  // namespace harmony::service
