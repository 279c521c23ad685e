#pragma once

// How a process shows the launcher, or systemd, that it runs: the thread that beats.

#include <optional>
#include <thread>

#include "common/base/attended_clock.h"
#include "common/base/mutex.h"
#include "common/ipc/heartbeat.h"
#include "common/ipc/service_manager.h"

namespace harmony::runtime {

// How long work may last that nobody else holds to a deadline. PURE. One piece of it at a time.
class WorkLimit {
 public:
  explicit WorkLimit(Nanos limit) : limit_(limit) {}

  void Begin(Nanos now) { since_ = now; }
  void End() { since_.reset(); }
  // A part of the work is done, the next has as long.
  void Progress(Nanos now) {
    if (since_) since_ = now;
  }
  bool Exceeded(Nanos now) const { return since_ && now - *since_ >= limit_; }
  Nanos limit() const { return limit_; }

 private:
  const Nanos limit_;
  std::optional<Nanos> since_;  // of the work under way
};

// Beats from a thread that does nothing else, from construction to destruction: a process that is
// stopped, or of which no thread gets to run, falls silent.
//
// Commands are held to deadlines by the coordinator. What a process does where there may be no
// coordinator to look (its start, letting go of what runs, the set-up of a job) is held to one
// here, and so is each turn of the coordinator's own loop: when it lasts too long, the process
// falls silent as well. So whoever watches has one sign to look at, whatever hangs: the launcher
// the word that it gave to the process, systemd what the process of a unit sends.
//
// Owner: the program's frame. Thread-safe.
class Pulse {
 public:
  // Far below any limit of silence.
  static constexpr Nanos kInterval = Millis(250);
  // The coordinator gives a command the same (runner::RunnerOptions::command_deadline).
  static constexpr Nanos kLongestWork = Seconds(120);

  explicit Pulse(ipc::Heartbeat heartbeat, Nanos longest_work = kLongestWork,
                 ipc::ServiceManager manager = {});
  ~Pulse();
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;

  // Work that has to end within kLongestWork; a new piece takes the place of the last.
  void BeginWork();
  void EndWork();
  // Work that comes in parts is under way, if any is, and has done one of them.
  void Progress();
  // The process does what it is there for; it begins to stop. For a service manager.
  void Ready();
  void Stopping();
  // The last beat was left out: work lasts too long.
  bool silent();

 private:
  void Run();

  ipc::Heartbeat heartbeat_;  // its thread only
  Mutex mutex_;
  CondVar stop_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;
  ipc::ServiceManager manager_ ABSL_GUARDED_BY(mutex_);
  const AttendedClock clock_ ABSL_GUARDED_BY(mutex_);
  WorkLimit work_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// A piece of such work, as long as this lives. A null pulse: nobody watches.
class UnwatchedWork {
 public:
  explicit UnwatchedWork(Pulse* pulse) : pulse_(pulse) {
    if (pulse_ != nullptr) pulse_->BeginWork();
  }
  ~UnwatchedWork() {
    if (pulse_ != nullptr) pulse_->EndWork();
  }
  UnwatchedWork(const UnwatchedWork&) = delete;
  UnwatchedWork& operator=(const UnwatchedWork&) = delete;

 private:
  Pulse* const pulse_;
};

}  // namespace harmony::runtime
