#pragma once

// Snapshots for Watch: made on the loop, taken by the thread of the call.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/mutex.h"
#include "coordinator/service/jobs/job_registry.h"
#include "coordinator/service/run/job_run.h"

namespace harmony::v1 {
class Progress;
}  // namespace harmony::v1

namespace harmony::service {

// What one watcher is sent. The loop pushes, one other thread takes; both ends may go first.
class ProgressStream {
 public:
  ProgressStream();
  ~ProgressStream();

  // Loop: appends a snapshot; `last`: there will be no other.
  void Push(v1::Progress progress, bool last);
  // Taker: waits for at most `patience`; null when nothing came. Null with ended() true: no more.
  std::unique_ptr<v1::Progress> Take(std::chrono::milliseconds patience);
  bool ended();
  // Loop: so many wait to be taken that the next one can wait, too, and will tell as much: who
  // reads slowly, or not at all, costs no memory.
  bool full();
  // Taker: it is not interested any more.
  void Abandon();
  bool abandoned();

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::unique_ptr<v1::Progress>> queue_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
};

// One watcher, as the loop keeps it: when it is due, and what it saw last (shares and rates are
// differences).
class Watcher {
 public:
  Watcher(int64_t job_number, Nanos interval, std::shared_ptr<ProgressStream> stream)
      : job_(job_number), interval_(interval), stream_(std::move(stream)) {}

  int64_t job() const { return job_; }
  bool gone() const { return stream_->abandoned() || done_; }
  // A step has been completed: it is due soon.
  void Hurry() { hurry_ = true; }
  bool Due(Nanos now) const;
  // `run`: of this job; null when it is not running. `messages`: all of the job so far.
  void Send(const store::JobRecord& record, const JobRun* run,
            const std::vector<std::string>& messages, Members* members, Bytes host_capacity,
            Nanos now);

 private:
  void FillRun(const JobRun& run, Members* members, Nanos now, v1::Progress* progress);
  void FillDevice(const JobRun& run, int device, bool attached, Nanos now, v1::Progress* progress);

  int64_t job_;
  Nanos interval_;
  std::shared_ptr<ProgressStream> stream_;
  bool hurry_ = true;
  bool done_ = false;
  Nanos last_sent_;
  size_t messages_sent_ = 0;
  const JobRun* last_run_ = nullptr;   // compared only
  std::vector<LaneUsage> last_usage_;  // by lane
};

}  // namespace harmony::service
