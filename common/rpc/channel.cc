#include "common/rpc/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "common/rpc/address.h"

namespace harmony::rpc {
namespace {

// Error messages travel as metadata; gRPC's own limit of 8 KiB would turn a long one into another
// error.
constexpr int kMaxMetadataBytes = 1 << 20;
// How long a connection may take to come about, which gRPC has under the name of a pause. A Unix
// socket connects at once or never; a handshake takes its time on a busy machine.
constexpr int kConnectMillis = 10'000;

}  // namespace

Endpoint SocketEndpoint(absl::string_view socket_path) {
  return {std::string(socket_path), "", {}};
}

std::shared_ptr<grpc::Channel> MakeChannel(const Endpoint& endpoint) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMostAnswerBytes);
  arguments.SetMaxSendMessageSize(kMostAnswerBytes);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  // Despite its name: how long one attempt may take. A socket that systemd keeps takes connections
  // before there is a coordinator to answer them.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMillis);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (!endpoint.remote()) {
    return grpc::CreateCustomChannel(SocketTarget(endpoint.socket_path),
                                     grpc::InsecureChannelCredentials(), arguments);
  }
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMillis);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMillis);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // as many as it takes
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = endpoint.tls.ca;
  tls.pem_cert_chain = endpoint.tls.certificate;
  tls.pem_private_key = endpoint.tls.key;
  return grpc::CreateCustomChannel(endpoint.address, grpc::SslCredentials(tls), arguments);
}

void ListenOnSocket(grpc::ServerBuilder& builder, absl::string_view socket_path) {
  builder.SetMaxReceiveMessageSize(kMostAnswerBytes);
  builder.SetMaxSendMessageSize(kMostAnswerBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.AddListeningPort(SocketTarget(socket_path), grpc::InsecureServerCredentials());
}

}  // namespace harmony::rpc
