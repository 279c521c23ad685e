#pragma once

// Schedules as the published planner makes them: seeds of ours, for what its search would list is
// what ours is compared with. PURE.

#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/paper/layer_profile.h"
#include "coordinator/planner/paper/schedule.h"

namespace harmony {

// With backward packs at `u_bwd` and forward packs at `u_fwd` (divisors of `samples` that the
// profile covers): the fewest packs that fit with equal shares of the time, those with equal shares
// of the memory, packs filled from the last layer on, and packs of equally many layers, as it is
// told by hand; of each the forward packs alike and those equal to the backward ones. In the order
// of their number; each fits the GPUs by its formula. Some may be the same.
absl::StatusOr<std::vector<paper::Schedule>> PublishedSchedules(const paper::LayerProfile& profile,
                                                                const paper::Machine& machine,
                                                                int64_t samples, int64_t u_fwd,
                                                                int64_t u_bwd);

}  // namespace harmony
