#pragma once

#include "common/ipc/segment.h"
#include "common/runtime/lane_semaphores.h"

namespace harmony::runtime {

// The segment's semaphore banks as lanes use them.
class SegmentSemaphores : public LaneSemaphores {
 public:
  // `segment` must outlive it.
  explicit SegmentSemaphores(const ipc::Segment* segment) : segment_(segment) {}

  absl::Status Wait(uint32_t generation, uint32_t index, uint64_t value,
                    const std::atomic<bool>& cancelled) override;
  void Signal(uint32_t generation, uint32_t index, uint64_t value) override;

 private:
  const ipc::Segment* const segment_;
};

}  // namespace harmony::runtime
