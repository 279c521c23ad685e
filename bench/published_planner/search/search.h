#pragma once

// The best schedule under the published cost model (without prefetch, as the published planner
// ranks): both microbatch sizes, any number of packs, free boundaries, forward and backward packs
// apart. PURE: the result depends on the arguments only, never on threads or time.

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "bench/published_planner/cost_model/layer_profile.h"
#include "bench/published_planner/cost_model/schedule.h"

namespace harmony::published {

struct SearchOptions {
  uint64_t seed = 1;
  // Row steps of the pipeline evaluator (about 7 ns each); 0: chosen by the number of layers.
  int64_t steps = 0;
  // Runs body(0..count-1), in any order and possibly at once.
  std::function<void(int count, const std::function<void(int)>& body)> for_each =
      [](int count, const std::function<void(int)>& body) {
        for (int i = 0; i < count; ++i) body(i);
      };
};

struct SearchResult {
  Schedule schedule;
  double time_s = 0;
  double lower_bound_s = 0;  // of every schedule with these microbatch rules; equals time_s in vDP
  int64_t evaluations = 0;   // schedules timed (vDP: labels of the dynamic programme)
  int size_pairs = 0;        // pairs of microbatch sizes for which a schedule was found
};

// Microbatch sizes are the divisors of a task's samples that the profile covers.
// InvalidArgument: arguments that make no sense, or no such size. ResourceExhausted: nothing fits,
// and which layer needs how much.
absl::StatusOr<SearchResult> Search(const LayerProfile& profile, const Machine& machine, Mode mode,
                                    int64_t minibatch, const SearchOptions& options);

}  // namespace harmony::published
