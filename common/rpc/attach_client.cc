#include "common/rpc/attach_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>
#include <utility>

#include "common/base/build_identity.h"
#include "common/base/mutex.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "harmony/v1/attach.grpc.pb.h"

namespace harmony::rpc {
namespace {

using std::chrono::milliseconds;
using Stream = grpc::ClientReaderWriter<v1::FromProcess, v1::ToProcess>;

constexpr milliseconds kFirstBackoff{50};
constexpr milliseconds kLastBackoff{1000};
constexpr milliseconds kDrainDeadline{1000};

// Answers that dialling again would not change.
bool IsRefusal(absl::StatusCode code) {
  return code == absl::StatusCode::kFailedPrecondition ||
         code == absl::StatusCode::kInvalidArgument ||
         code == absl::StatusCode::kPermissionDenied || code == absl::StatusCode::kUnimplemented;
}

}  // namespace

class AttachClient::Impl {
 public:
  Impl(std::string socket_path, AttachCallbacks callbacks)
      : socket_path_(std::move(socket_path)), callbacks_(std::move(callbacks)) {}

  void Start() {
    reader_ = std::thread([this] { Run(); });
  }

  void Send(v1::FromProcess message) {
    MutexLock lock(mutex_);
    if (!up_ || stopping_) return;
    queue_.push_back(std::move(message));
    changed_.NotifyAll();
  }

  void Shutdown() {
    std::shared_ptr<grpc::ClientContext> open;
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
      // The writer sends what is queued and closes its half; the coordinator then ends the stream.
      const CondVar::Time deadline = CondVar::After(kDrainDeadline);
      while (up_ && changed_.WaitUntil(mutex_, deadline)) {
      }
      open = context_;
    }
    if (open != nullptr) open->TryCancel();
    if (reader_.joinable()) reader_.join();
  }

 private:
  enum class Outcome { kLost, kNotReached, kRefused };

  void Run() {
    milliseconds backoff = kFirstBackoff;
    for (;;) {
      absl::Status status;
      const Outcome outcome = RunStream(&status);
      if (stopping()) return;
      if (outcome == Outcome::kRefused) return callbacks_.on_refused(status);
      if (outcome == Outcome::kLost) {
        callbacks_.on_lost();
        backoff = kFirstBackoff;
      }
      MutexLock lock(mutex_);
      const CondVar::Time deadline = CondVar::After(backoff);
      while (!stopping_ && changed_.WaitUntil(mutex_, deadline)) {
      }
      if (stopping_) return;
      backoff = std::min(backoff * 2, kLastBackoff);
    }
  }

  // One stream from dial to end.
  Outcome RunStream(absl::Status* status) {
    const auto context = std::make_shared<grpc::ClientContext>();
    // A new channel each time: none of an old one's waiting between attempts is inherited.
    std::unique_ptr<v1::Attach::Stub> stub =
        v1::Attach::NewStub(MakeChannel(SocketEndpoint(socket_path_)));
    {
      MutexLock lock(mutex_);
      if (stopping_) return Outcome::kNotReached;
      context_ = context;
    }
    std::unique_ptr<Stream> stream = stub->Attach(context.get());
    v1::FromProcess hello;
    callbacks_.hello(hello.mutable_hello());
    hello.mutable_hello()->set_version(BuildIdentity());
    {
      MutexLock lock(mutex_);
      queue_.clear();
      queue_.push_back(std::move(hello));
      up_ = true;
    }
    std::thread writer([this, &stream] { WriteLoop(*stream); });
    bool welcomed = false;
    v1::ToProcess message;
    while (stream->Read(&message)) {
      welcomed = welcomed || message.has_welcome();
      if (!stopping()) callbacks_.on_message(message);
    }
    {
      MutexLock lock(mutex_);
      up_ = false;
      changed_.NotifyAll();
    }
    writer.join();
    *status = FromGrpcStatus(stream->Finish());
    MutexLock lock(mutex_);
    context_ = nullptr;
    if (IsRefusal(status->code())) return Outcome::kRefused;
    return welcomed ? Outcome::kLost : Outcome::kNotReached;
  }

  void WriteLoop(Stream& stream) {
    MutexLock lock(mutex_);
    for (;;) {
      while (up_ && !stopping_ && queue_.empty()) changed_.Wait(mutex_);
      if (!up_) return;
      if (queue_.empty()) {  // stopping
        lock.Unlock();
        stream.WritesDone();
        return;
      }
      const v1::FromProcess message = std::move(queue_.front());
      queue_.pop_front();
      lock.Unlock();
      if (!stream.Write(message)) return;  // the reader sees the end of the stream too
      lock.Lock();
    }
  }

  bool stopping() {
    MutexLock lock(mutex_);
    return stopping_;
  }

  const std::string socket_path_;
  const AttachCallbacks callbacks_;
  std::thread reader_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<v1::FromProcess> queue_ ABSL_GUARDED_BY(mutex_);
  bool up_ ABSL_GUARDED_BY(mutex_) = false;  // a stream is open and takes messages
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);  // of the open stream
};

AttachClient::AttachClient(std::string socket_path, AttachCallbacks callbacks)
    : impl_(std::make_unique<Impl>(std::move(socket_path), std::move(callbacks))) {}
AttachClient::~AttachClient() { impl_->Shutdown(); }
void AttachClient::Start() { impl_->Start(); }
void AttachClient::Send(v1::FromProcess message) { impl_->Send(std::move(message)); }
void AttachClient::Shutdown() { impl_->Shutdown(); }

}  // namespace harmony::rpc
