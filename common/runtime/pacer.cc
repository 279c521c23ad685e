#include "common/runtime/pacer.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cerrno>

namespace harmony::runtime {
namespace {

// Wake-ups come this late on a busy machine. A reservation made within it of the end of the one
// before starts at that end, so that lateness does not add up over a run.
constexpr Nanos kTimerJitter = Nanos(200'000);

// Threads that the same event wakes up come here within this time, on a machine with fewer
// processors than threads.
constexpr Nanos kSameMoment = Nanos(1'000'000);

// An idle processor of a virtual machine takes this long to wake up; the clock is watched
// meanwhile.
constexpr Nanos kWakeUp = Nanos(200'000);

// Waiting for a processor takes longer than computations that are modelled this short.
constexpr Nanos kShort = Nanos(1'000'000);

// Except where it computes for long, the thread of a paced lane has real-time priority, where the
// system allows it: it has to be in time though others compute, and though others copy.
enum Priority { kOrdinary, kWorks, kWaits };  // the numbers that the system takes
thread_local Priority priority = kOrdinary;

void SetPriority(Priority wanted) {
  // What was given from outside stays.
  const bool given =
      priority == kOrdinary && (sched_getscheduler(0) & ~SCHED_RESET_ON_FORK) != SCHED_OTHER;
  if (wanted == priority || given) return;
  const sched_param parameters{.sched_priority = wanted};
  // Threads that a computation makes meanwhile do not inherit it.
  const int policy = wanted == kOrdinary ? SCHED_OTHER : SCHED_RR;
  if (sched_setscheduler(0, policy | SCHED_RESET_ON_FORK, &parameters) == 0) priority = wanted;
}

void SleepUntilMonotonic(Nanos deadline) {
  SetPriority(kWaits);
  const int64_t wake_up = (deadline - kWakeUp).count();
  timespec until;
  until.tv_sec = wake_up / 1'000'000'000;
  until.tv_nsec = wake_up % 1'000'000'000;
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
  while (MonotonicClock().Now() < deadline) {
  }
}

}  // namespace

Pacer::Pacer(PacedWork work, const Clock* clock, SleepUntil sleep_until)
    : work_(work),
      clock_(clock),
      sleep_until_(sleep_until != nullptr ? sleep_until : &SleepUntilMonotonic) {}

Pacer::Reservation Pacer::Reserve(Nanos duration, uint64_t issued) {
  SetPriority(work_ == PacedWork::kCopy || duration < kShort ? kWorks : kOrdinary);
  MutexLock lock(mutex_);
  const Nanos now = clock_->Now();
  if (issued < last_.issued && now - last_.made <= kSameMoment && now < free_at_) {
    const Nanos end = std::max(free_at_ - last_.duration, now - kTimerJitter) + duration;
    pushed_back_[last_.number] += end + last_.duration - free_at_;
    free_at_ = end + last_.duration;
    return {end, duration, 0};
  }
  const Nanos start = now - free_at_ <= kTimerJitter ? free_at_ : now;
  free_at_ = start + duration;
  last_ = {last_.number + 1, issued, now, duration};
  return {free_at_, duration, last_.number};
}

Nanos Pacer::DeadlineOf(const Reservation& reservation) {
  MutexLock lock(mutex_);
  const auto pushed = pushed_back_.find(reservation.number);
  return reservation.deadline + (pushed == pushed_back_.end() ? Nanos() : pushed->second);
}

void Pacer::FinishAt(const Reservation& reservation) {
  Nanos deadline = DeadlineOf(reservation);
  while (clock_->Now() < deadline) {
    sleep_until_(deadline);
    deadline = DeadlineOf(reservation);
  }
  {
    MutexLock lock(mutex_);
    pushed_back_.erase(reservation.number);
  }
  const Nanos late = clock_->Now() - deadline;
  paced_.fetch_add(1, std::memory_order_relaxed);
  const Nanos tolerated = std::max(kTimerJitter, Nanos(reservation.duration.count() / 50));
  if (late > tolerated) overruns_.fetch_add(1, std::memory_order_relaxed);
}

Nanos ModelledDuration(Bytes size, BytesPerSecond rate) {
  return Nanos::FromSeconds(static_cast<double>(size.count()) / rate.value);
}

}  // namespace harmony::runtime
