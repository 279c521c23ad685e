#pragma once

// The one conversion between gRPC's status and ours. Codes are the same numbers on both sides;
// messages travel whole (channels and servers of common/rpc/channel.h allow long ones).

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace harmony::rpc {

grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace harmony::rpc
