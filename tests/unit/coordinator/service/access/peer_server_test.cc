#include "coordinator/service/access/peer_server.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/impl/client_unary_call.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>

#include "harmony/v1/coordinator.grpc.pb.h"
#include "tests/unit/common/base/fake_clock.h"

namespace harmony::service {
namespace {

using ::testing::HasSubstr;

// A peer's server whose services implement nothing: what reaches them is UNIMPLEMENTED.
class PeerServerTest : public ::testing::Test {
 protected:
  std::shared_ptr<grpc::Channel> ConnectAs(Access access) {
    PeerServerOptions options;
    options.peer = {"ann (uid 1001)", access};
    options.rules = &rules_;
    options.services = {&service_};
    options.on_cut_off = [this] { ++cut_off_; };
    auto server = PeerServer::Start(options, clock_);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    EXPECT_TRUE(server_->Admit(0));
    server_->Take(-1, ends[0]);
    return grpc::CreateInsecureChannelFromFd("peer", ends[1]);
  }
  static grpc::Status Call(v1::Coordinator::Stub& stub) {
    grpc::ClientContext context;
    v1::ListResponse response;
    return stub.List(&context, {}, &response);
  }

  FakeClock clock_;  // stands still
  AccessRules rules_ = *AccessRules::Parse({}, 1000);
  v1::Coordinator::Service service_;
  std::atomic<int> cut_off_ = 0;
  std::unique_ptr<PeerServer> server_;
};

// Through the methods that the service has, whatever they are: none is forgotten.
TEST_F(PeerServerTest, WhoMayReadIsRefusedEveryMethodThatChanges) {
  const auto channel = ConnectAs(Access::kRead);
  const google::protobuf::ServiceDescriptor* const service =
      v1::Job::descriptor()->file()->FindServiceByName("Coordinator");
  int refused = 0;
  for (int i = 0; i < service->method_count(); ++i) {
    const std::string path = "/" + service->full_name() + "/" + service->method(i)->name();
    const grpc::internal::RpcMethod method(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC,
                                           channel);
    grpc::ClientContext context;
    v1::GetRequest empty;
    v1::Job answer;
    const grpc::Status status =
        grpc::internal::BlockingUnaryCall<v1::GetRequest, v1::Job, grpc::protobuf::MessageLite,
                                          grpc::protobuf::MessageLite>(channel.get(), method,
                                                                       &context, empty, &answer);
    const bool reads = NeededFor(path) == Access::kRead;
    EXPECT_EQ(status.error_code(),
              reads ? grpc::StatusCode::UNIMPLEMENTED : grpc::StatusCode::PERMISSION_DENIED)
        << path << ": " << status.error_message();
    if (reads) continue;
    ++refused;
    EXPECT_THAT(status.error_message(),
                testing::AllOf(HasSubstr("ann (uid 1001)"), HasSubstr("--allow user:ann=change")));
  }
  EXPECT_GE(refused, 6);
}

TEST_F(PeerServerTest, WhoMayChangeIsLetThrough) {
  auto stub = v1::Coordinator::NewStub(ConnectAs(Access::kChange));
  grpc::ClientContext context;
  v1::SubmitResponse response;
  EXPECT_EQ(stub->Submit(&context, {}, &response).error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(PeerServerTest, AFloodIsRefusedAndThenCutOff) {
  auto stub = v1::Coordinator::NewStub(ConnectAs(Access::kChange));
  const PeerLimits limits;
  for (int i = 0; i < limits.calls_burst; ++i) {
    ASSERT_EQ(Call(*stub).error_code(), grpc::StatusCode::UNIMPLEMENTED) << i;
  }
  for (int i = 0; i < limits.refusals_burst; ++i) {
    const grpc::Status status = Call(*stub);
    ASSERT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << i;
    ASSERT_THAT(status.error_message(), HasSubstr("wait a second"));
  }
  EXPECT_EQ(cut_off_, 0);
  EXPECT_EQ(Call(*stub).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(cut_off_, 1);
  EXPECT_FALSE(server_->Admit(0));
}

TEST_F(PeerServerTest, AMessageThatIsTooLongIsRefused) {
  auto stub = v1::Coordinator::NewStub(ConnectAs(Access::kChange));
  grpc::ClientContext context;
  v1::SubmitRequest request;
  request.set_job_yaml(std::string((16 << 20) + 1, 'x'));
  v1::SubmitResponse response;
  EXPECT_EQ(stub->Submit(&context, request, &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace harmony::service
