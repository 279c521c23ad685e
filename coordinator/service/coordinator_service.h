#pragma once

// The public gRPC service: turns calls into questions to the loop. What is slow (reading files,
// planning) is done on the thread of the call.

#include <memory>

namespace grpc {
class Service;
}

namespace harmony::service {

class BackgroundWork;
class Coordinator;
class Mailbox;

// All must outlive the service, and the server is shut down before them. `remote`: its callers are
// on other machines, whose folders mean nothing here, so that paths in jobs have to be absolute.
std::unique_ptr<grpc::Service> MakeCoordinatorService(Coordinator* coordinator, Mailbox* mailbox,
                                                      BackgroundWork* background, bool remote);

}  // namespace harmony::service
