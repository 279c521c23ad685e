#include "common/rpc/attach_client.h"

#include <gmock/gmock.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/build_identity.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "harmony/v1/attach.grpc.pb.h"

namespace harmony::rpc {
namespace {

// Counts and remembers; tests wait on it.
class Journal {
 public:
  void Add(std::string entry) {
    std::lock_guard<std::mutex> lock(mutex_);
    entries_.push_back(std::move(entry));
    changed_.notify_all();
  }
  // Waits until the entry has been seen `times` times.
  bool Await(const std::string& entry, int times = 1) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] {
      return std::count(entries_.begin(), entries_.end(), entry) >= times;
    });
  }
  int Count(const std::string& entry) {
    std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<int>(std::count(entries_.begin(), entries_.end(), entry));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> entries_;
};

// A coordinator that welcomes everyone (or refuses), notes what comes and ends the stream when it
// is sent JobReady "end".
class FakeCoordinator : public v1::Attach::Service {
 public:
  FakeCoordinator(const std::string& socket, Journal& journal) : journal_(journal) {
    grpc::ServerBuilder builder;
    ListenOnSocket(builder, socket);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeCoordinator() override { server_->Shutdown(std::chrono::system_clock::now()); }

  void Refuse(absl::Status status) { refusal_ = std::move(status); }

  grpc::Status Attach(grpc::ServerContext*,
                      grpc::ServerReaderWriter<v1::ToProcess, v1::FromProcess>* stream) override {
    if (!refusal_.ok()) return ToGrpcStatus(refusal_);
    v1::ToProcess welcome;
    welcome.mutable_welcome()->set_num_devices(2);
    v1::FromProcess message;
    while (stream->Read(&message)) {
      if (message.has_hello()) {
        journal_.Add("hello " + message.hello().version());
        stream->Write(welcome);
      } else if (message.has_job_ready()) {
        journal_.Add("ready " + message.job_ready().job_id());
        if (message.job_ready().job_id() == "end") return grpc::Status::OK;
      }
    }
    return grpc::Status::OK;
  }

 private:
  Journal& journal_;
  absl::Status refusal_;
  std::unique_ptr<grpc::Server> server_;
};

class AttachClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "rpcXXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    socket_ = folder_ + "/c.sock";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  AttachCallbacks Callbacks() {
    AttachCallbacks callbacks;
    callbacks.hello = [](v1::Hello* hello) { hello->set_role(v1::ROLE_SWAPPER); };
    callbacks.on_message = [this](const v1::ToProcess& message) {
      if (message.has_welcome()) journal_.Add("welcome");
    };
    callbacks.on_lost = [this] { journal_.Add("lost"); };
    callbacks.on_refused = [this](const absl::Status& status) {
      journal_.Add(absl::StrCat("refused ", status.message()));
    };
    return callbacks;
  }
  static v1::FromProcess Ready(const std::string& id) {
    v1::FromProcess message;
    message.mutable_job_ready()->set_job_id(id);
    return message;
  }

  std::string folder_, socket_;
  Journal journal_;
};

TEST_F(AttachClientTest, SaysHelloAndSendsInOrder) {
  FakeCoordinator coordinator(socket_, journal_);
  AttachClient client(socket_, Callbacks());
  client.Start();
  ASSERT_TRUE(journal_.Await("welcome"));
  EXPECT_EQ(journal_.Count(absl::StrCat("hello ", BuildIdentity())), 1);
  for (int i = 0; i < 100; ++i) client.Send(Ready("a"));
  client.Shutdown();
  ASSERT_TRUE(journal_.Await("ready a", 100));
  EXPECT_EQ(journal_.Count("lost"), 0);
}

TEST_F(AttachClientTest, DialsAgainAfterALossAndWaitsForAServer) {
  AttachClient client(socket_, Callbacks());
  client.Start();  // nobody listens yet
  {
    FakeCoordinator coordinator(socket_, journal_);
    ASSERT_TRUE(journal_.Await("welcome", 1));
    client.Send(Ready("end"));
    ASSERT_TRUE(journal_.Await("lost", 1));
    ASSERT_TRUE(journal_.Await("welcome", 2));
  }
  ASSERT_TRUE(journal_.Await("lost", 2));
  std::filesystem::remove(socket_);
  FakeCoordinator second(socket_, journal_);
  ASSERT_TRUE(journal_.Await("welcome", 3));
}

TEST_F(AttachClientTest, StopsWhenRefusedAndKeepsTheWholeMessage) {
  FakeCoordinator coordinator(socket_, journal_);
  const std::string reason(100'000, 'x');
  coordinator.Refuse(absl::FailedPreconditionError(reason));
  AttachClient client(socket_, Callbacks());
  client.Start();
  EXPECT_TRUE(journal_.Await("refused " + reason));
}

TEST_F(AttachClientTest, ShutsDownWhileNobodyListens) {
  AttachClient client(socket_, Callbacks());
  client.Start();
  client.Shutdown();
  client.Send(Ready("late"));
  EXPECT_EQ(journal_.Count("lost"), 0);
}

}  // namespace
}  // namespace harmony::rpc
