#pragma once

// How much a search may take. PURE.

#include <algorithm>
#include <cstdint>

#include "coordinator/planner/search/search.h"

namespace harmony::planner {

// What a search is worth, in tasks to bound: of a run of minutes and longer so many. A shorter run
// is worth a part of its least time, so that nobody waits longer for the plan than for the run, but
// something. For longer runs 40% more was tried: of 20 plans (bench/scaling_plans.py) those were
// between 1.2% slower and 0.6% faster, of pipelines of imported profiles another seed may change
// 4%. A third fewer miss two optima of search_test.
inline constexpr int64_t kTasks = 50'000'000, kLeastTasks = 4'000'000, kTasksPerLayer = 50'000;
inline constexpr double kPartOfRun = 0.1, kSecondsOfTask = 4.5e-8;

// Measured: a command of a dry run takes as long as bounding so many tasks; a change of a plan that
// is not bounded as so many. To bound one of all plans of a few layers, and to keep it, takes some
// 32 microseconds, with its share of the dry runs as so many.
inline constexpr int64_t kTasksPerCommand = 20, kTasksPerMove = 20, kTasksPerPlan = 1000;
// When the phases of a search end, as parts of its work. Where few devices are run dry for all, dry
// runs find more than bounds do: for llama-8B on 8 devices plans that are 1.2% faster (3 seeds).
struct Phases {
  double starts = 0.4, seeds = 0.1, bounds = 0.65, best = 0.8, dry_runs = 0.9;
};
inline constexpr Phases kPhasesOfFewForAll{.bounds = 0.3, .best = 0.44};

// The annealing by bounds. Measured on gpt2-1.5b (4 equal and 3 unequal devices): hotter chains and
// less work for them end with plans that are 0.5 to 4% slower.
inline constexpr size_t kBoundChains = 8;
// Where no plan of the first of them fits the host, none of the others does, either.
inline constexpr size_t kChainsToFit = 2;
inline constexpr double kNear = 0.02, kFar = 0.05;  // temperatures, as parts of the score
// A chain grows hotter by so much with each change in a row after which there is no plan that the
// search had not looked at. Of 160 chains of 3 to 6 layers on any sets of 2 or 3 unlike devices,
// searches then miss the best plan that any variant found by 0.09% in the mean and 4.3% at most,
// instead of 0.3% and 7% (with five times as much: 0.22%).
inline constexpr double kHeatOfKnown = 0.1;
// The annealing by dry runs: as many chains as have so many dry runs each, but one at least. Where
// all the work is enough for few dry runs of whole plans (each counted with its repeat by commands,
// where there is one), few devices are run for all, or only plans that other searches have found
// are changed, in one cold chain: for llama-8B on 8 devices, where it is enough for 230, this finds
// plans that are 0.5% faster (6 seeds) than bounds first.
inline constexpr int64_t kDryRunChains = 16, kDryRunsOfChain = 100, kFewDryRuns = 1000;
inline constexpr double kCool = 0.05, kHot = 0.3, kCold = 0.003;
// Plans whose neighbours are looked at: as many as that without finding a better one; where all the
// work is not enough for so many, none.
inline constexpr int kFruitlessExpansions = 300;
inline constexpr int64_t kLeastExpansions = 20;

inline constexpr size_t kMostReported = 16;
inline constexpr size_t kVaried = 8;     // seeds that are tried with other settings
inline constexpr int kMostKnown = 5000;  // changes in a row that were all known: there is no other
// A dry run without commands says the exact time of all but a few plans, and of most of these too
// short a one: what it puts first is repeated with them, where that takes no more than such a part
// of the work; of plans that are all looked at, whatever is less than so many times the best, since
// the best is said to be proved.
inline constexpr int64_t kFewCommands = 150;
inline constexpr double kNearlyBestOfAll = 1.03;
inline constexpr int kDryRunSteps = 2;     // the first is a warm-up
inline constexpr size_t kDryRunWhole = 8;  // of plans of which few devices were run dry for all
inline constexpr size_t kManyRounds = 16;  // around the devices; more only where fewer do not fit

// `bound`: of a step. What SearchOptions say comes first.
inline int64_t WorkOf(const PlanBuilder& builder, const MoveRules& rules, Nanos bound,
                      const SearchOptions& options) {
  if (options.work > 0) return options.work;
  const double run =
      static_cast<double>(builder.job().max_steps) * bound.seconds() / kSecondsOfTask;
  const double tasks = std::clamp<double>(run * kPartOfRun, kLeastTasks, kTasks);
  int64_t work = static_cast<int64_t>(tasks) + kTasksPerLayer * builder.model().num_layers();
  if (!rules.groups) work /= 4;  // there is little to change
  return static_cast<int64_t>(static_cast<double>(work) * options.share);
}

}  // namespace harmony::planner
