#include "common/rpc/attach_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "harmony/v1/attach.grpc.pb.h"

namespace harmony {
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
    std::lock_guard<std::mutex> lock(mutex_);
    if (!up_ || stopping_) return;
    queue_.push_back(std::move(message));
    changed_.notify_all();
  }

  void Shutdown() {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
      // The writer sends what is queued and closes its half; the coordinator then ends the stream.
      changed_.wait_for(lock, kDrainDeadline, [&] { return !up_; });
      if (context_ != nullptr) context_->TryCancel();
    }
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
      std::unique_lock<std::mutex> lock(mutex_);
      if (changed_.wait_for(lock, backoff, [&] { return stopping_; })) return;
      backoff = std::min(backoff * 2, kLastBackoff);
    }
  }

  // One stream from dial to end.
  Outcome RunStream(absl::Status* status) {
    grpc::ClientContext context;
    // A new channel each time: none of an old one's waiting between attempts is inherited.
    std::unique_ptr<v1::Attach::Stub> stub = v1::Attach::NewStub(MakeChannel(socket_path_));
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return Outcome::kNotReached;
      context_ = &context;
    }
    std::unique_ptr<Stream> stream = stub->Attach(&context);
    v1::FromProcess hello;
    callbacks_.hello(hello.mutable_hello());
    hello.mutable_hello()->set_version(HarmonyVersion());
    {
      std::lock_guard<std::mutex> lock(mutex_);
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
      std::lock_guard<std::mutex> lock(mutex_);
      up_ = false;
      changed_.notify_all();
    }
    writer.join();
    *status = FromGrpcStatus(stream->Finish());
    std::lock_guard<std::mutex> lock(mutex_);
    context_ = nullptr;
    if (IsRefusal(status->code())) return Outcome::kRefused;
    return welcomed ? Outcome::kLost : Outcome::kNotReached;
  }

  void WriteLoop(Stream& stream) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !up_ || stopping_ || !queue_.empty(); });
      if (!up_) return;
      if (queue_.empty()) {  // stopping
        lock.unlock();
        stream.WritesDone();
        return;
      }
      const v1::FromProcess message = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      if (!stream.Write(message)) return;  // the reader sees the end of the stream too
      lock.lock();
    }
  }

  bool stopping() {
    std::lock_guard<std::mutex> lock(mutex_);
    return stopping_;
  }

  const std::string socket_path_;
  const AttachCallbacks callbacks_;
  std::thread reader_;

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<v1::FromProcess> queue_;
  bool up_ = false;  // a stream is open and takes messages
  bool stopping_ = false;
  grpc::ClientContext* context_ = nullptr;  // of the open stream
};

AttachClient::AttachClient(std::string socket_path, AttachCallbacks callbacks)
    : impl_(std::make_unique<Impl>(std::move(socket_path), std::move(callbacks))) {}
AttachClient::~AttachClient() { impl_->Shutdown(); }
void AttachClient::Start() { impl_->Start(); }
void AttachClient::Send(v1::FromProcess message) { impl_->Send(std::move(message)); }
void AttachClient::Shutdown() { impl_->Shutdown(); }

const char* HarmonyVersion() { return "0.1.0"; }

}  // namespace harmony
