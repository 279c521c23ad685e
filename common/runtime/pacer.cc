#include "common/runtime/pacer.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cerrno>

namespace harmony {
namespace {

// Wake-ups come this late on a busy machine. A reservation made within it of the end of the one
// before starts at that end, so that lateness does not add up over a run.
constexpr Nanos kTimerJitter = Nanos(200'000);

// From the end of one paced task to the begin of the next a thread has real-time priority, where
// the system allows it: it sleeps, signals and waits, and has to be in time though others compute.
thread_local bool real_time = false;

void SetRealTime(bool wanted) {
  const sched_param parameters{.sched_priority = wanted ? 1 : 0};
  if (wanted == real_time || (wanted && sched_getscheduler(0) != SCHED_OTHER)) return;
  if (sched_setscheduler(0, wanted ? SCHED_RR : SCHED_OTHER, &parameters) == 0) real_time = wanted;
}

void SleepUntilMonotonic(Nanos deadline) {
  SetRealTime(true);
  timespec until;
  until.tv_sec = deadline.count() / 1'000'000'000;
  until.tv_nsec = deadline.count() % 1'000'000'000;
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

}  // namespace

Pacer::Pacer(const Clock* clock, SleepUntil sleep_until)
    : clock_(clock), sleep_until_(sleep_until != nullptr ? sleep_until : &SleepUntilMonotonic) {}

Pacer::Reservation Pacer::Reserve(Nanos duration) {
  SetRealTime(false);
  const Nanos now = clock_->Now();
  std::lock_guard lock(mutex_);
  const Nanos start = now - free_at_ <= kTimerJitter ? free_at_ : now;
  free_at_ = start + duration;
  return {free_at_, duration};
}

void Pacer::FinishAt(const Reservation& reservation) {
  if (clock_->Now() < reservation.deadline) sleep_until_(reservation.deadline);
  const Nanos late = clock_->Now() - reservation.deadline;
  paced_.fetch_add(1, std::memory_order_relaxed);
  const Nanos tolerated = std::max(kTimerJitter, Nanos(reservation.duration.count() / 50));
  if (late > tolerated) overruns_.fetch_add(1, std::memory_order_relaxed);
}

Nanos ModelledDuration(Bytes size, BytesPerSecond rate) {
  return Nanos::FromSeconds(static_cast<double>(size.count()) / rate.value);
}

}  // namespace harmony
