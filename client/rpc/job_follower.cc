#include "client/rpc/job_follower.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/rpc/grpc_status.h"

namespace harmony::client {
namespace {

constexpr size_t kMostEvents = 1000;
constexpr std::chrono::milliseconds kRetryInterval(100);
// Who asks on and on is cut off.
constexpr std::chrono::milliseconds kBusyInterval(1000);

}  // namespace

bool IsConnectionLoss(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsCancelled(status) || absl::IsUnknown(status) ||
         absl::IsDeadlineExceeded(status);
}

JobFollower::JobFollower(FollowOptions options)
    : options_(std::move(options)),
      event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      client_(options_.server),
      submitting_(options_.submit.has_value()),
      thread_([this] { Run(); }) {}

JobFollower::~JobFollower() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  client_.StopWatching();
  thread_.join();
}

std::vector<JobFollower::Event> JobFollower::TakeEvents() {
  // First, so that what is pushed meanwhile is taken now or makes the descriptor readable again.
  uint64_t count;
  ssize_t ignored = read(event_fd_.get(), &count, sizeof(count));
  (void)ignored;
  MutexLock lock(mutex_);
  return std::exchange(events_, {});
}

void JobFollower::Push(Event event) {
  {
    MutexLock lock(mutex_);
    // Whoever takes them may be held up by who reads what it prints: of progress the last is
    // enough.
    const auto only_progress = [](const Event& each) {
      return each.progress && !each.submitted && !each.ended && each.message.empty();
    };
    if (events_.size() >= kMostEvents && only_progress(events_.back()) && only_progress(event)) {
      v1::Progress& last = *events_.back().progress;
      last.mutable_messages()->MergeFrom(event.progress->messages());
      event.progress->mutable_messages()->Swap(last.mutable_messages());
      last.Swap(&*event.progress);
    } else {
      events_.push_back(std::move(event));
    }
  }
  uint64_t one = 1;
  ssize_t ignored = write(event_fd_.get(), &one, sizeof(one));
  (void)ignored;
}

void JobFollower::Run() {
  while (true) {
    bool submitting = submitting_;
    std::optional<absl::Status> end = submitting ? TrySubmit() : TryWatch();
    if (end) {
      Event event;
      event.submit_refused = submitting && !end->ok();
      event.ended = *std::move(end);
      return Push(std::move(event));
    }
    if (submitting && !submitting_) continue;  // submitted: watch it now
    if (!WaitForCoordinator()) {
      Event event;
      event.ended = absl::UnavailableError("the coordinator does not answer");
      return Push(std::move(event));
    }
  }
}

std::optional<absl::Status> JobFollower::TrySubmit() {
  Submitted submitted;
  // The answer to a first try may have been lost after the job was queued. Only for a coordinator
  // that nobody else submits to; others see an error instead (see FollowOptions::patience).
  if (submit_was_sent_) {
    absl::StatusOr<v1::ListResponse> list = client_.List({});
    if (!list.ok()) return std::nullopt;
    for (const v1::Job& job : list->jobs()) {
      if (job.submitted_at() < options_.submitted_since) continue;
      if (!IsFinal(job.state())) submitted.job_id = job.job_id();
    }
  }
  if (submitted.job_id.empty()) {
    absl::StatusOr<v1::SubmitResponse> response = client_.Submit(*options_.submit);
    if (!response.ok()) {
      if (!IsConnectionLoss(response.status()) || options_.patience) return response.status();
      submit_was_sent_ = true;
      return std::nullopt;
    }
    submitted = {response->job_id(), response->already_finished()};
  }
  submitting_ = false;
  options_.job_id = submitted.job_id;
  Event event;
  event.submitted = submitted;
  Push(std::move(event));
  if (submitted.already_finished) return absl::OkStatus();
  return std::nullopt;
}

std::optional<absl::Status> JobFollower::TryWatch() {
  v1::WatchRequest request;
  request.set_job_id(options_.job_id);
  request.set_interval_ms(options_.interval_ms);
  bool final_seen = false;
  absl::Status status = client_.Watch(request, [&](const v1::Progress& progress) {
    Event event;
    if (std::exchange(said_lost_, false)) {
      event.message = busy_ ? "it takes calls again" : "the coordinator is back";
    }
    lost_since_.reset();
    final_seen = IsFinal(progress.job().state());
    event.progress = progress;
    Push(std::move(event));
    return !final_seen;
  });
  if (final_seen) return absl::OkStatus();
  busy_ = rpc::IsTooManyCalls(status);
  if (!status.ok() && !busy_ && !IsConnectionLoss(status)) return status;
  return std::nullopt;
}

bool JobFollower::WaitForCoordinator() {
  Nanos now = MonotonicClock().Now();
  if (!lost_since_) lost_since_ = now;
  MutexLock lock(mutex_);
  if (!stop_ && !std::exchange(said_lost_, true)) {
    lock.Unlock();
    Event event;
    event.message = busy_ ? "the coordinator takes no more calls now; asking again"
                          : "lost the coordinator; connecting again";
    Push(std::move(event));
    lock.Lock();
  }
  if (options_.patience && now - *lost_since_ > *options_.patience) return false;
  const CondVar::Time deadline = CondVar::After(busy_ ? kBusyInterval : kRetryInterval);
  while (!stop_ && wake_.WaitUntil(mutex_, deadline)) {
  }
  return !stop_;
}

}  // namespace harmony::client
