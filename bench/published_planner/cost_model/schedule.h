#pragma once

// What the published planner decides (a four-tuple of microbatch sizes and packs), and the
// constants of its cost model. PURE.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bench/published_planner/cost_model/layer_profile.h"

namespace harmony::published {

// vPP: packs round-robin over the GPUs, all samples pass each pack. vDP: each GPU runs all packs on
// its share of the samples, and gradients are all-reduced.
enum class Mode { kPipeline, kDataParallel };
absl::string_view ToString(Mode mode);
absl::StatusOr<Mode> ParseMode(absl::string_view text);

// The planner's constants; defaults are those of its command line.
struct Machine {
  int gpus = 4;
  int64_t memory_bytes = 10737418240;                           // of each GPU
  double swap_bytes_per_s = 11.5 * 1024 * 1024 * 1024;          // host link, shared by all GPUs
  double peer_bytes_per_s = 8.2 * 1024 * 1024 * 1024;           // per GPU and direction
  double host_message_bytes_per_s = 16.0 * 1024 * 1024 * 1024;  // shared; each byte counts twice
  double task_delay_s = 0.040;                                  // at the end of each task
};
// InvalidArgument names the constant: no GPU, no memory, a link of speed zero.
absl::Status CheckMachine(const Machine& machine);

// The planner's word for a group of consecutive layers run as one task; both ends inclusive.
struct Pack {
  int first = 0, last = 0;
  bool operator==(const Pack&) const = default;
};

// `backward` covers all layers. `forward` covers the layers before the last backward pack, which
// runs its forward as part of its backward task; it is empty when there is one backward pack.
struct Schedule {
  int64_t u_fwd = 1, u_bwd = 1;
  std::vector<Pack> forward, backward;
  bool operator==(const Schedule&) const = default;
};

// Samples that one GPU's tasks pass over: all of them, or its share.
int64_t SamplesPerTask(Mode mode, int gpus, int64_t minibatch);

// The shape rules above, and: minibatch divides over the replicas and into microbatches, which the
// profile covers. Says nothing about memory.
absl::Status CheckSchedule(const LayerProfile& profile, Mode mode, int gpus, int64_t minibatch,
                           const Schedule& schedule);

}  // namespace harmony::published
