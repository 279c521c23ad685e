#include "common/rpc/grpc_status.h"

#include <string>

#include "absl/strings/match.h"

namespace harmony::rpc {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      std::string(status.message()));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

bool IsTooManyCalls(const absl::Status& status) {
  return absl::IsResourceExhausted(status) &&
         (absl::StartsWith(status.message(), kTooManyCalls) ||
          absl::StrContains(status.message(), "Threadpool Exhausted"));
}

}  // namespace harmony::rpc
