#include "common/runtime/pulse.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>

namespace harmony::runtime {

Pulse::Pulse(ipc::Heartbeat heartbeat, Nanos longest_work, ipc::ServiceManager manager)
    : heartbeat_(std::move(heartbeat)),
      manager_(std::move(manager)),
      clock_(MonotonicClock(), kInterval * 4),
      work_(longest_work) {
  thread_ = std::thread([this] { Run(); });
}

Pulse::~Pulse() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  stop_.NotifyAll();
  thread_.join();
}

void Pulse::BeginWork() {
  MutexLock lock(mutex_);
  work_.Begin(clock_.Now());
}

void Pulse::EndWork() {
  MutexLock lock(mutex_);
  work_.End();
}

void Pulse::Progress() {
  MutexLock lock(mutex_);
  work_.Progress(clock_.Now());
}

void Pulse::Ready() {
  MutexLock lock(mutex_);
  manager_.Ready();
}

void Pulse::Stopping() {
  MutexLock lock(mutex_);
  manager_.Stopping();
}

bool Pulse::silent() {
  MutexLock lock(mutex_);
  return silent_;
}

void Pulse::Run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    const bool was_silent = std::exchange(silent_, work_.Exceeded(clock_.Now()));
    if (!silent_) {
      heartbeat_.Beat();
      manager_.Alive(MonotonicClock().Now());
    }
    if (silent_ && !was_silent) {
      spdlog::error("{} of work without an end: giving no sign of life before it is over",
                    FormatDuration(work_.limit()));
    }
    const CondVar::Time next = CondVar::After(std::chrono::nanoseconds(kInterval.count()));
    while (!stopping_ && stop_.WaitUntil(mutex_, next)) {
    }
  }
}

}  // namespace harmony::runtime
