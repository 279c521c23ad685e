#include "common/ipc/semaphore.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace harmony::ipc {
namespace {

// Who raises the generation and was to wake us may have died in between.
constexpr Nanos kRecheck = Millis(100);

// Not FUTEX_PRIVATE: waiters are in other processes.
void FutexWakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Returns on a wake-up, when the word differs from `seen`, on a signal or after `timeout`.
void FutexWait(std::atomic<uint32_t>* word, uint32_t seen, Nanos timeout) {
  timespec relative{};
  relative.tv_sec = timeout.count() / 1'000'000'000;
  relative.tv_nsec = timeout.count() % 1'000'000'000;
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, seen, &relative, nullptr, 0);
}

// Value first, word second, waiters third; a waiter goes the other way round (waiters, word,
// value). So either the signaller sees the waiter, or the waiter sees the new word and value.
void RaiseAndWake(SemaphoreCell* cell, uint64_t value) {
  uint64_t current = cell->value.load(std::memory_order_relaxed);
  while (current < value && !cell->value.compare_exchange_weak(current, value)) {
  }
  cell->futex_word.fetch_add(1);
  if (cell->waiters.load() != 0) FutexWakeAll(&cell->futex_word);
}

absl::Status GenerationOver(const GenerationGuard& guard) {
  return absl::AbortedError(
      absl::StrCat("generation ", guard.expected, " is over, ", guard.word->load(), " has begun"));
}

}  // namespace

void TimelineSemaphore::Signal(uint64_t value) { RaiseAndWake(cell_, value); }

void TimelineSemaphore::Poison() { RaiseAndWake(cell_, std::numeric_limits<uint64_t>::max()); }

absl::Status TimelineSemaphore::WaitFor(uint64_t value, const GenerationGuard& guard,
                                        Nanos timeout) const {
  // The value is read before the generation: a bank is poisoned only after the generation word has
  // been raised, so a poisoned value is never taken for a reached one.
  const auto reached = [&] { return cell_->value.load(std::memory_order_acquire) >= value; };
  if (reached()) return guard.Valid() ? absl::OkStatus() : GenerationOver(guard);

  const bool limited = timeout > Nanos();
  const Nanos deadline = MonotonicClock().Now() + timeout;
  cell_->waiters.fetch_add(1);
  absl::Status result;
  while (true) {
    const uint32_t seen = cell_->futex_word.load();
    const bool done = reached();
    if (!guard.Valid()) {
      result = GenerationOver(guard);
      break;
    }
    if (done) break;
    Nanos pause = kRecheck;
    if (limited) {
      const Nanos left = deadline - MonotonicClock().Now();
      if (left <= Nanos()) {
        result = absl::DeadlineExceededError(absl::StrCat("waited ", FormatDuration(timeout),
                                                          " for value ", value, ", stands at ",
                                                          this->value()));
        break;
      }
      pause = std::min(pause, left);
    }
    FutexWait(&cell_->futex_word, seen, pause);
  }
  cell_->waiters.fetch_sub(1);
  return result;
}

}  // namespace harmony::ipc
