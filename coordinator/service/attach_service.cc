#include "coordinator/service/attach_service.h"

#include <grpcpp/impl/service_type.h>

#include <atomic>
#include <deque>
#include <utility>

#include "common/base/mutex.h"
#include "common/rpc/grpc_status.h"
#include "coordinator/service/coordinator.h"
#include "coordinator/service/mailbox.h"
#include "harmony/v1/attach.grpc.pb.h"

namespace harmony::service {
namespace {

using Reactor = grpc::ServerBidiReactor<v1::FromProcess, v1::ToProcess>;

// The queue of a stream. Shared by the loop, which sends, and the reactor, which lives as long as
// gRPC wants.
class StreamLink : public ProcessLink {
 public:
  explicit StreamLink(Reactor* reactor) : reactor_(reactor) {}

  void Send(v1::ToProcess message) override {
    MutexLock lock(mutex_);
    if (reactor_ == nullptr || closing_) return;
    queue_.push_back(std::move(message));
    if (queue_.size() == 1) reactor_->StartWrite(&queue_.front());
  }

  void Close(absl::Status status) override {
    MutexLock lock(mutex_);
    if (reactor_ == nullptr || closing_) return;
    closing_ = true;
    close_status_ = std::move(status);
    if (queue_.empty()) FinishLocked(close_status_);
  }

  void OnWriteDone(bool ok) {
    MutexLock lock(mutex_);
    if (!ok) return FinishLocked(absl::UnavailableError("the stream broke"));
    queue_.pop_front();
    if (!queue_.empty()) {
      reactor_->StartWrite(&queue_.front());
    } else if (closing_) {
      FinishLocked(close_status_);
    }
  }

  void Finish(const absl::Status& status) {
    MutexLock lock(mutex_);
    FinishLocked(status);
  }

  void Detach() {
    MutexLock lock(mutex_);
    reactor_ = nullptr;
  }

 private:
  void FinishLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    closing_ = true;
    if (finished_) return;
    finished_ = true;
    reactor_->Finish(rpc::ToGrpcStatus(status));
  }

  // Held in calls of the reactor, which could be gone otherwise. gRPC calls back from a thread of
  // its own, never from within them.
  Mutex mutex_;
  Reactor* reactor_ ABSL_GUARDED_BY(mutex_);                 // null once it is gone
  std::deque<v1::ToProcess> queue_ ABSL_GUARDED_BY(mutex_);  // the front is being written
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;             // nothing more is queued
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status close_status_ ABSL_GUARDED_BY(mutex_);
};

// One stream; deletes itself when gRPC is done with it.
class AttachReactor : public Reactor {
 public:
  AttachReactor(uint64_t session, Coordinator* coordinator, Mailbox* mailbox)
      : session_(session),
        coordinator_(coordinator),
        mailbox_(mailbox),
        link_(std::make_shared<StreamLink>(this)) {
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return link_->Finish(absl::OkStatus());
    if (said_hello_ == incoming_.has_hello()) {
      return link_->Finish(absl::InvalidArgumentError("Hello comes first, and once"));
    }
    mailbox_->Post([this_session = session_, coordinator = coordinator_, link = link_,
                    message = std::move(incoming_)] {
      if (message.has_hello()) {
        coordinator->OnHello(this_session, link, message);
      } else {
        coordinator->OnMessage(this_session, message);
      }
    });
    said_hello_ = true;
    incoming_ = {};
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override { link_->OnWriteDone(ok); }
  void OnDone() override {
    link_->Detach();
    mailbox_->Post([session = session_, coordinator = coordinator_] {
      coordinator->OnSessionClosed(session);
    });
    delete this;
  }

 private:
  const uint64_t session_;
  Coordinator* const coordinator_;
  Mailbox* const mailbox_;
  const std::shared_ptr<StreamLink> link_;
  v1::FromProcess incoming_;
  bool said_hello_ = false;
};

class AttachService : public v1::Attach::CallbackService {
 public:
  AttachService(Coordinator* coordinator, Mailbox* mailbox)
      : coordinator_(coordinator), mailbox_(mailbox) {}

  Reactor* Attach(grpc::CallbackServerContext*) override {
    return new AttachReactor(++sessions_, coordinator_, mailbox_);
  }

 private:
  Coordinator* const coordinator_;
  Mailbox* const mailbox_;
  std::atomic<uint64_t> sessions_{0};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAttachService(Coordinator* coordinator, Mailbox* mailbox) {
  return std::make_unique<AttachService>(coordinator, mailbox);
}

}  // namespace harmony::service
