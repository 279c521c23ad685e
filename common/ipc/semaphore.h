#pragma once

// Timeline semaphores: monotonic counters in shared memory.
//
// A semaphore has exactly one signaller and any number of waiters, in any processes. Values only
// rise within a bank's life. Killing a waiter or the signaller at any instruction leaves a usable
// semaphore: a dead waiter's count costs the signaller a needless system call, nothing else.
// They are hints of one generation; nothing is ever recovered from them.

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/units.h"
#include "common/ipc/segment_layout.h"

namespace harmony::ipc {

// What a wait is bound to: it ends with Aborted once the word differs from `expected`.
struct GenerationGuard {
  const std::atomic<uint32_t>* word = nullptr;
  uint32_t expected = 0;

  bool Valid() const { return word->load(std::memory_order_acquire) == expected; }
};

// A view of one cell; copyable, owns nothing. All methods are thread-safe and process-safe.
class TimelineSemaphore {
 public:
  explicit TimelineSemaphore(SemaphoreCell* cell) : cell_(cell) {}

  uint64_t value() const { return cell_->value.load(std::memory_order_acquire); }

  // Raises the value (never lowers it) and wakes waiters. What was written before is visible to
  // whoever sees the value.
  void Signal(uint64_t value);

  // Waits until the value is at least `value`: OK. Aborted when the generation moved on (checked
  // first, so a poisoned bank never reads as success), DeadlineExceeded after `timeout` (absent
  // when not above zero). Re-checks at least every 100 ms.
  absl::Status WaitFor(uint64_t value, const GenerationGuard& guard, Nanos timeout = Nanos()) const;

  // Sets the value to its maximum and wakes all: the end of a bank.
  void Poison();

 private:
  SemaphoreCell* cell_;
};

}  // namespace harmony::ipc
