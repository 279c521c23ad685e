#pragma once

// Carries out the operations of a timeline on threads, one for each lane: the other driver of what
// the virtual clock runs.

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/baselines/engine/timeline.h"

namespace harmony::bench {

struct LaneOptions {
  // Each operation takes the time at least that the timeline says (common/runtime/pacer.h), lanes
  // that share a resource one after the other; false: as long as it takes.
  bool paced = true;
  // Operations that are carried out together: they begin when all can, and end when all have been
  // carried out. By operation, the number of its group; -1: none. Empty: no groups.
  std::vector<int> group_of;
};

struct LaneTimes {
  std::vector<Nanos> step_end;  // since the beginning: when the last operation of a step ended
  // Paced operations, and those of them that ended late.
  uint64_t paced = 0, overruns = 0;
};

// An operation begins when the one before it on its lane and all that it comes after have ended.
// `carry_out` is called by the lane's thread; its first error ends everything and is returned.
absl::StatusOr<LaneTimes> RunOnThreads(
    const baselines::Timeline& timeline, const LaneOptions& options,
    const std::function<absl::Status(baselines::Operation)>& carry_out);

}  // namespace harmony::bench
