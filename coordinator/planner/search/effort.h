#pragma once

// How much a search may take. PURE.

#include <algorithm>
#include <cstdint>

#include "coordinator/planner/search/search.h"

namespace harmony::planner {

// What a search is worth, in tasks to bound: of a run of minutes so many. A shorter run is worth a
// part of its least time, so that nobody waits longer for the plan than for the run, but something;
// a long one a smaller part, but no more than so many tasks.
inline constexpr int64_t kTasks = 68'000'000, kLeastTasks = 4'000'000, kTasksPerLayer = 100'000;
inline constexpr double kPartOfShortRun = 0.1, kPartOfRun = 0.01, kSecondsOfTask = 3e-8,
                        kMostTasks = 140e6;

// Measured: a command of a dry run takes as long as bounding so many tasks; a change of a plan that
// is not bounded as so many.
inline constexpr int64_t kTasksPerCommand = 20, kTasksPerMove = 20;
// When the phases of a search end, as parts of its work. Where one device is run dry for all, dry
// runs find more than bounds do: for llama-8B on 8 devices plans that are 1.2% faster (3 seeds).
struct Phases {
  double seeds = 0.1, bounds = 0.65, best = 0.8, dry_runs = 0.9;
};
inline constexpr Phases kPhasesOfOneForAll{.bounds = 0.3, .best = 0.44};

// `bound`: of a step. What SearchOptions say comes first.
inline int64_t WorkOf(const PlanBuilder& builder, const MoveRules& rules, Nanos bound,
                      const SearchOptions& options) {
  if (options.work > 0) return options.work;
  const double run =
      static_cast<double>(builder.job().max_steps) * bound.seconds() / kSecondsOfTask;
  const double tasks = std::clamp<double>(run * kPartOfShortRun, kLeastTasks, kTasks);
  int64_t work = static_cast<int64_t>(std::max(tasks, std::min(run * kPartOfRun, kMostTasks))) +
                 kTasksPerLayer * builder.model().num_layers();
  if (!rules.groups) work /= 4;  // there is little to change
  return static_cast<int64_t>(static_cast<double>(work) * options.share);
}

}  // namespace harmony::planner
