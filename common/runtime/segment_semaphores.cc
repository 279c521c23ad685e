#include "common/runtime/segment_semaphores.h"

#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/command/lane_kinds.h"

namespace harmony::runtime {

// A lane's number is that of its semaphore.
static_assert(limits::kMostDevices * command::kDeviceLaneKinds +
                  (command::kLaneKinds - command::kDeviceLaneKinds) <=
              int{ipc::kSemaphoresPerBank});

absl::Status SegmentSemaphores::Wait(uint32_t generation, uint32_t index, uint64_t value,
                                     const std::atomic<bool>& cancelled) {
  if (index >= ipc::kSemaphoresPerBank) {
    return absl::OutOfRangeError(absl::StrCat("there is no semaphore ", index));
  }
  const ipc::TimelineSemaphore semaphore = segment_->Semaphore(generation, index);
  while (true) {
    // A lost coordinator cancels without raising the generation word, so nobody is woken: look.
    absl::Status status = semaphore.WaitFor(value, segment_->Guard(generation), Millis(100));
    if (cancelled.load()) return absl::AbortedError("quiesced");
    if (!absl::IsDeadlineExceeded(status)) return status;
  }
}

void SegmentSemaphores::Signal(uint32_t generation, uint32_t index, uint64_t value) {
  segment_->Semaphore(generation, index).Signal(value);
}

}  // namespace harmony::runtime
