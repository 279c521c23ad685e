#pragma once

// The one conversion between gRPC's status and ours. Codes are the same numbers on both sides;
// messages travel whole (channels and servers of common/rpc/channel.h allow long ones).

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace harmony::rpc {

grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

// How the message begins of a RESOURCE_EXHAUSTED that waiting helps against. A job that does not
// fit has the same code.
inline constexpr char kTooManyCalls[] = "too many calls";
// Whether asking again later helps: so says the coordinator, or a gRPC server without a free
// thread.
bool IsTooManyCalls(const absl::Status& status);

}  // namespace harmony::rpc
