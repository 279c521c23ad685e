#pragma once

// The gRPC server of the coordinator: both services, health checking, reflection.

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace harmony::service {

class Coordinator;
class Mailbox;

class CoordinatorServer {
 public:
  // Listens when it returns. Both arguments must outlive it.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(const std::string& socket_path,
                                                                  Coordinator* coordinator,
                                                                  Mailbox* mailbox);
  virtual ~CoordinatorServer() = default;  // ends all calls
};

}  // namespace harmony::service
