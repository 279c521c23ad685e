#pragma once

// What the program prints: JSON with the keys of the reference data where they have one.

#include <string>

#include "absl/status/statusor.h"
#include "bench/published_planner/cost_model/event_simulator.h"
#include "bench/published_planner/cost_model/layer_profile.h"
#include "bench/published_planner/cost_model/schedule.h"
#include "bench/published_planner/ours/profile_plan.h"
#include "bench/published_planner/search/search.h"

namespace harmony::published {

struct Case {
  LayerProfile profile;
  Machine machine;
  Mode mode = Mode::kPipeline;
  int64_t minibatch = 0;
};

// How long a search took, and what it looked at. Null where a schedule was given.
struct SearchFigures {
  double seconds = 0, lower_bound_s = 0;
  int64_t evaluations = 0;
  int sizes = 0;  // microbatch sizes, or pairs of them, that were tried
};

// A schedule under the published cost model.
absl::StatusOr<std::string> PublishedReport(const Case& of, const Schedule& schedule,
                                            const SearchFigures* search);
// A plan judged by our dispatcher. `fits`: by our count of memory.
std::string OwnReport(const Case& of, const plan::Plan& plan,
                      const harmony::planner::Estimate& estimate, bool fits,
                      const SearchFigures* search);

}  // namespace harmony::published
