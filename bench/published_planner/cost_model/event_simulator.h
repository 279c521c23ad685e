#pragma once

// The published planner's cost model, event by event: what its `est_time_s` means. PURE.
//
// Each GPU has six first-in-first-out streams. Events are made in task order, so one pass suffices:
// an event ends at max(ends of its inputs, end of the stream's previous event) + its seconds.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/published_planner/cost_model/layer_profile.h"
#include "bench/published_planner/cost_model/schedule.h"

namespace harmony::published {

// Whether prefetch and offload overlap compute. The published planner ranks by kOff.
enum class Prefetch { kOff, kOn };

struct Estimate {
  double time_s = 0;              // of one iteration, from an empty machine
  std::vector<double> gpu_end_s;  // in vDP one GPU stands for all
  // All GPUs together.
  int64_t swap_in_bytes = 0, swap_out_bytes = 0, peer_bytes = 0, allreduce_bytes = 0;
};

// Checks machine and schedule (not memory) first.
absl::StatusOr<Estimate> Simulate(const LayerProfile& profile, const Machine& machine, Mode mode,
                                  int64_t minibatch, const Schedule& schedule, Prefetch prefetch);

// Largest pack memory of each phase, as the planner counts it: no double buffers, no stashes.
struct PackMemory {
  int64_t forward_bytes = 0, backward_bytes = 0;
};
absl::StatusOr<PackMemory> MaxPackMemory(const LayerProfile& profile, const Schedule& schedule);

}  // namespace harmony::published
