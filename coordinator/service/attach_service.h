#pragma once

// The gRPC side of the attach streams: what comes is posted to the loop, what the loop sends is
// queued.

#include <memory>

namespace grpc {
class Service;
}

namespace harmony::service {

class Coordinator;
class Mailbox;

// Both must outlive the service, and the server is shut down before them.
std::unique_ptr<grpc::Service> MakeAttachService(Coordinator* coordinator, Mailbox* mailbox);

}  // namespace harmony::service
