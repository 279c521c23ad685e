#pragma once

// The public gRPC service: turns calls into questions to the loop. What is slow (reading files,
// planning) is done on the thread of the call.

#include <memory>

namespace grpc {
class Service;
}

namespace harmony::service {

class Coordinator;
class Mailbox;

// Both must outlive the service, and the server is shut down before them.
std::unique_ptr<grpc::Service> MakeCoordinatorService(Coordinator* coordinator, Mailbox* mailbox);

}  // namespace harmony::service
