#pragma once

// The lanes of one process (a worker: its compute lane; the host worker: host_compute and host_io)
// with the checks at the resource: generation, incarnation, order, bounds of bindings. PURE, not
// thread-safe: the caller holds its lock.
//
// Failure behaviour: what belongs to another generation or incarnation is dropped (Aborted); what
// contradicts the protocol is refused (Internal) and must end the process's generation.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/command.h"
#include "common/plan/lane_queue.h"

namespace harmony {

class TaskQueue {
 public:
  // `lanes`: the lanes this process executes. `resident`: bytes of its device that hold bindings (0
  // for the host worker).
  TaskQueue(uint32_t incarnation, const std::vector<int>& lanes, Bytes resident);

  absl::Status Start(uint32_t generation);
  // Commands sent to `incarnation` in `generation`, in the order of the message.
  absl::Status Push(uint32_t generation, uint32_t incarnation, std::vector<Command> commands);
  // Drops what is queued. quiet() turns true once what runs has finished.
  void Quiesce();
  bool quiet() const;

  LaneQueue& lane(int index);  // REQUIRES: one of this process's lanes
  const std::vector<LaneQueue>& lanes() const { return lanes_; }

 private:
  absl::Status CheckBindings(const Command& command) const;

  uint32_t incarnation_;
  Bytes resident_;
  std::vector<LaneQueue> lanes_;
};

}  // namespace harmony
