#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"

namespace harmony::runtime {

// What a lane needs of the timeline semaphores and of the generation word of the segment. Waits
// and signals of several threads may run at once.
class LaneSemaphores {
 public:
  virtual ~LaneSemaphores() = default;

  // Blocks until semaphore `index` of the generation's bank has reached `value`. Aborted when the
  // segment's generation is not (or no longer) `generation`, even if the value was seen: the bank
  // of a dead generation is set to its maximum. Aborted within about 100 ms when `cancelled`
  // becomes true.
  virtual absl::Status Wait(uint32_t generation, uint32_t index, uint64_t value,
                            const std::atomic<bool>& cancelled) = 0;

  // REQUIRES: the caller is the semaphore's one signaller; `value` is above all it signalled.
  virtual void Signal(uint32_t generation, uint32_t index, uint64_t value) = 0;
};

}  // namespace harmony::runtime
