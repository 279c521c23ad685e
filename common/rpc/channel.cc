#include "common/rpc/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "common/rpc/address.h"

namespace harmony::rpc {
namespace {

constexpr int kMaxMessageBytes = 256 << 20;
// Error messages travel as metadata; gRPC's own limit of 8 KiB would turn a long one into another
// error.
constexpr int kMaxMetadataBytes = 1 << 20;

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(absl::string_view socket_path) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  // Despite its name: how long one attempt may take. A socket that systemd keeps takes connections
  // before there is a coordinator to answer them.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(SocketTarget(socket_path), grpc::InsecureChannelCredentials(),
                                   arguments);
}

void SetServerLimits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
}

void ListenOnSocket(grpc::ServerBuilder& builder, absl::string_view socket_path) {
  SetServerLimits(builder);
  builder.AddListeningPort(SocketTarget(socket_path), grpc::InsecureServerCredentials());
}

}  // namespace harmony::rpc
