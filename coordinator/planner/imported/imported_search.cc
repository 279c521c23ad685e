#include "coordinator/planner/imported/imported_search.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/planner/device_need.h"
#include "coordinator/planner/imported/long_step.h"
#include "coordinator/planner/imported/published_packs.h"
#include "coordinator/planner/imported/seed_groups.h"
#include "coordinator/planner/imported/walker.h"
#include "coordinator/planner/paper/search.h"
#include "coordinator/planner/plan_builder.h"

namespace harmony {
namespace {

// Of the search under the published cost model, and of its GPUs' memory.
constexpr int64_t kScheduleSteps = 12'000'000;
constexpr double kShares[] = {1, 0.8, 0.95, 0.6};
constexpr size_t kSharesOfManyLayers = 2;
// Tasks to estimate: of the seeds of all sizes and of each; of the first walks, one of each size,
// and of each; of each of the walks that follow, and commands to rehearse.
constexpr int64_t kSeedTasks = 4'000'000, kLeastSeedTasks = 100'000, kMostSeedTasks = 1'000'000;
constexpr int64_t kVaried = 2;  // times as many for variants of the seeds
constexpr int64_t kFirstTasks = 5'500'000, kMostFirstTasks = 3'000'000;
constexpr int64_t kTasks = 5'000'000, kCommands = 130'000;
constexpr int kManyLayers = 300;
// Forward microbatches of the published planner's schedules, against backward ones.
constexpr int64_t kMostForward = 4;
// Sizes of which more seeds are tried, and that are walked: those of the best seeds that do not
// take so many times longer than the best.
constexpr size_t kMostSizes = 8;
constexpr double kFairSize = 1.6, kHopelessSize = 1.3;
// A listed schedule that is no slower than so many times the best is varied, a seed simulated.
constexpr double kNearBest = 1.002;
constexpr double kFirstHot = 0.005, kHot = 0.01;
// A plan whose rehearsed time is longer is not simulated, nor one after so many tasks.
constexpr double kMayBeBest = 1.015;
constexpr int64_t kTasksToSimulate = 40'000;
// Of the GPUs' memory: a plan for less memory is one for more, too, and with less to choose from a
// walk goes elsewhere.
constexpr double kSmallerMemory = 0.6;
// Walks of the best size, the second best, ..., by the number of sizes.
constexpr int kWalks[][3] = {{4, 0, 0}, {2, 2, 0}, {2, 1, 1}};

using Walkers = std::vector<std::unique_ptr<Walker>>;

// At the same capacity by the published count of memory, and at less, for what we count beyond that
// and because what is best with less is another plan worth a try. The best of each first.
std::vector<paper::Schedule> SchedulesOf(const paper::LayerProfile& profile,
                                         const paper::Machine& machine, paper::Mode mode,
                                         int64_t minibatch, const ImportedSearchOptions& options) {
  const bool many = profile.layers() > kManyLayers;
  std::vector<std::vector<paper::Schedule>> found(many ? kSharesOfManyLayers : std::size(kShares));
  options.for_each(static_cast<int>(found.size()), [&](int i) {
    paper::Machine smaller = machine;
    smaller.memory_bytes =
        static_cast<int64_t>(static_cast<double>(machine.memory_bytes) * kShares[i]);
    paper::SearchOptions search;
    search.steps = kScheduleSteps;
    absl::StatusOr<paper::SearchResult> result =
        paper::Search(profile, smaller, mode, minibatch, search);
    if (!result.ok()) return;
    std::vector<paper::Schedule>& schedules = found[static_cast<size_t>(i)];
    schedules = std::move(result->others);
    schedules.insert(schedules.begin(), std::move(result->schedule));
  });
  std::vector<paper::Schedule> schedules;
  for (size_t rank = 0; rank <= paper::kMostOthers; ++rank) {
    for (std::vector<paper::Schedule>& of_share : found) {
      if (rank < of_share.size()) schedules.push_back(std::move(of_share[rank]));
    }
  }
  return schedules;
}

// What the published planner makes of a size of backward microbatches, the smallest forward ones
// first.
std::vector<paper::Schedule> PublishedOf(const paper::LayerProfile& profile,
                                         const paper::Machine& machine, int64_t step_samples,
                                         int64_t u_bwd) {
  std::vector<paper::Schedule> schedules;
  for (int64_t u_fwd = u_bwd; u_fwd <= kMostForward * u_bwd; ++u_fwd) {
    if (step_samples % u_fwd != 0 || !paper::Covers(profile.forward, u_fwd)) continue;
    absl::StatusOr<std::vector<paper::Schedule>> more =
        PublishedSchedules(profile, machine, step_samples, u_fwd, u_bwd);
    if (!more.ok()) continue;
    std::move(more->begin(), more->end(), std::back_inserter(schedules));
  }
  return schedules;
}

// The best first, which has been checked.
void Sort(Walkers* walkers) {
  do {
    std::stable_sort(walkers->begin(), walkers->end(),
                     [](const auto& a, const auto& b) { return a->estimate() < b->estimate(); });
  } while (walkers->front()->Check());
}

// The best first; without those that take so many times longer than the best.
void KeepBestSizes(double longer, Walkers* walkers) {
  Sort(walkers);
  std::erase_if(*walkers, [&, least = walkers->front()->estimate().seconds()](const auto& walker) {
    return walker->estimate().seconds() > least * longer;
  });
  if (walkers->size() > kMostSizes) walkers->resize(kMostSizes);
}

// The most promising sizes first, each with its walkers, every second one on the smaller GPUs.
Walkers MoreWalkers(const ImportedModel& imported, const ImportedModel& smaller, Walkers sizes) {
  Sort(&sizes);
  const auto& walks = kWalks[std::min(sizes.size(), std::size(kWalks)) - 1];
  Walkers walkers;
  for (size_t i = 0; i < std::min(sizes.size(), std::size(walks)); ++i) {
    for (int stream = 1; stream < walks[i]; ++stream) {
      auto walker = std::make_unique<Walker>(stream % 2 == 1 ? smaller : imported,
                                             sizes[i]->samples(), static_cast<uint64_t>(stream));
      walker->Adopt(*sizes[i]);
      if (!walker->found()) {  // then on the same ones
        walker =
            std::make_unique<Walker>(imported, sizes[i]->samples(), static_cast<uint64_t>(stream));
        walker->Adopt(*sizes[i]);
      }
      walkers.push_back(std::move(walker));
    }
    walkers.push_back(std::move(sizes[i]));
  }
  return walkers;
}

// With the best schedule under the published cost model as it is, of which an estimate may think
// too little. Null where it does not fit.
std::unique_ptr<Walker> ListedWalker(const ImportedModel& imported,
                                     const std::vector<paper::Schedule>& schedules,
                                     const std::vector<int64_t>& sizes) {
  constexpr uint64_t kStream = 100;
  if (schedules.empty()) return nullptr;
  const paper::Schedule& best = schedules.front();
  if (std::find(sizes.begin(), sizes.end(), best.u_bwd) == sizes.end()) return nullptr;
  auto walker = std::make_unique<Walker>(imported, best.u_bwd, kStream);
  walker->TrySeeds({best}, {}, 0);
  walker->VarySeeds(0);
  return walker->found() ? std::move(walker) : nullptr;
}

// The first walker, which has rehearsed what it began with only, goes on where that is near the
// best.
void RehearseMore(const Walkers& walkers, int64_t commands) {
  const auto time = [](const Walker& walker) { return walker.rehearsed().begin()->first.first; };
  Walker& listed = *walkers.front();
  if (listed.rehearsed().empty()) return;
  for (const auto& walker : walkers) {
    if (walker->rehearsed().empty()) continue;
    if (time(*walker).seconds() * kNearBest < time(listed).seconds()) return;
  }
  listed.Rehearse(commands);
}

using Ranked = std::map<std::tuple<Nanos, int64_t, std::string>, const Plan*>;  // time, size, key

// Adds the best that take at most `limit`, as far as the work allows.
void TakeBest(const Ranked& ranked, double limit, int64_t tasks, std::vector<const Plan*>* plans) {
  for (const auto& [rank, plan] : ranked) {
    if (std::get<0>(rank).seconds() > limit || tasks < 0) return;
    tasks -= std::min(kMostTasksOfAStep, static_cast<int64_t>(plan->backward_groups.size()) * 2 *
                                             plan->num_microbatches);
    plans->push_back(plan);
  }
}

// What may be the best: a rehearsal may be some percent off, the estimate of a seed, too.
std::vector<const Plan*> MayBeBest(const Walkers& walkers) {
  Ranked rehearsed, seeds;
  std::set<std::string> known;
  for (const auto& walker : walkers) {
    for (const auto& [rank, plan] : walker->rehearsed()) {
      rehearsed.emplace(std::tuple(rank.first, walker->samples(), rank.second), &plan);
      if (walker->stream() == 0) known.insert(rank.second);
    }
  }
  std::vector<const Plan*> plans;
  if (rehearsed.empty()) return plans;
  const double least = std::get<0>(rehearsed.begin()->first).seconds();
  TakeBest(rehearsed, least * kMayBeBest, kTasksToSimulate, &plans);
  for (const auto& walker : walkers) {
    if (walker->stream() != 0) continue;
    for (const Walker::Seed& seed : walker->seeds()) {
      const std::string key = KeyOf(seed.plan);
      if (!known.contains(key))
        seeds.emplace(std::tuple(seed.time, walker->samples(), key), &seed.plan);
    }
  }
  TakeBest(seeds, least * kNearBest, kTasksToSimulate / 2, &plans);
  return plans;
}

// The best of the walkers' plans and seeds: those that may be it are simulated whole.
absl::Status Choose(const ImportedModel& imported, const Walkers& walkers,
                    const ImportedSearchOptions& options, ImportedResult* result) {
  const std::vector<const Plan*> plans = MayBeBest(walkers);
  std::vector<absl::StatusOr<Estimate>> estimates(plans.size(), absl::UnknownError(""));
  options.for_each(static_cast<int>(plans.size()), [&](int i) {
    const Plan& plan = *plans[static_cast<size_t>(i)];
    estimates[static_cast<size_t>(i)] = EvaluateStep(imported.model, plan, *imported.costs(plan));
  });
  std::optional<size_t> best;
  for (size_t i = 0; i < plans.size(); ++i) {
    if (!estimates[i].ok()) continue;
    ++result->simulations;
    if (!best || estimates[i]->step < estimates[*best]->step) best = i;
  }
  if (!best) return absl::InternalError("no plan that fits runs");
  result->plan = *plans[*best];
  result->estimate = *std::move(estimates[*best]);
  result->lower_bound = Walker(imported, result->plan.microbatch_size, 0).LowerBound();
  return absl::OkStatus();
}

// What is missing when each layer is a group by itself.
absl::Status NothingFits(const ImportedModel& imported, int64_t samples) {
  Plan plan = PlanBuilder(imported.model, imported.job, imported.machine, samples).Blank();
  plan.stream_slots = 1;
  plan.backward_groups = EqualGroups(imported.model.num_layers(), 1, 1);
  MirrorForward(&plan);
  SpreadByNeed(imported, {}, &plan);
  const std::vector<DeviceNeed> devices = NeedOfDevices(plan, NeedOfGroups(imported.model, plan));
  const DeviceNeed& most = *std::max_element(
      devices.begin(), devices.end(),
      [](const DeviceNeed& a, const DeviceNeed& b) { return a.total() < b.total(); });
  const auto of = [](const GroupNeed& need) {
    return absl::StrCat("layer ", need.layers.first, " in ", KindName(need.kind));
  };
  return absl::ResourceExhaustedError(
      absl::StrCat("no plan fits ", FormatBytesExact(imported.machine.devices[0].memory),
                   " a GPU: with each layer by itself, at a microbatch of ", samples,
                   ", a GPU needs ", FormatBytesExact(most.total()), ", workspace of ",
                   FormatBytesExact(most.workspace.workspace), " for ", of(most.workspace), " and ",
                   FormatBytesExact(most.resident.resident()), " beside it for ", of(most.resident),
                   "; give more memory, or a minibatch with a smaller divisor if that is none"));
}

}  // namespace

absl::StatusOr<ImportedResult> SearchImported(const paper::LayerProfile& profile,
                                              const paper::Machine& machine, paper::Mode mode,
                                              int64_t minibatch,
                                              const ImportedSearchOptions& options) {
  if (mode == paper::Mode::kDataParallel && minibatch % machine.gpus != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("minibatch ", minibatch, " does not divide over ", machine.gpus, " GPUs"));
  }
  const int devices = mode == paper::Mode::kPipeline ? machine.gpus : 1;
  const int64_t step_samples = paper::SamplesPerTask(mode, machine.gpus, minibatch);
  HARMONY_ASSIGN_OR_RETURN(const ImportedModel imported,
                           ImportModel(profile, machine, devices, step_samples));
  paper::Machine small = machine;
  small.memory_bytes =
      static_cast<int64_t>(static_cast<double>(machine.memory_bytes) * kSmallerMemory);
  HARMONY_ASSIGN_OR_RETURN(const ImportedModel smaller,
                           ImportModel(profile, small, devices, step_samples));
  Walkers walkers;
  const std::vector<int64_t> all_sizes = ImportedSizes(profile, step_samples);
  for (int64_t samples : all_sizes) {
    walkers.push_back(std::make_unique<Walker>(imported, samples, 0));
  }
  const int64_t smallest = walkers[0]->samples();
  const std::vector<paper::Schedule> schedules =
      SchedulesOf(profile, machine, mode, minibatch, options);
  ImportedResult result;
  // Little of all sizes, more of those that are left.
  for (const bool all : {true, false}) {
    const int64_t effort = std::clamp(kSeedTasks / static_cast<int64_t>(walkers.size()),
                                      kLeastSeedTasks, kMostSeedTasks);
    options.for_each(static_cast<int>(walkers.size()), [&](int i) {
      Walker& walker = *walkers[static_cast<size_t>(i)];
      walker.TrySeeds(schedules, PublishedOf(profile, machine, step_samples, walker.samples()),
                      effort);
      if (!all) walker.VarySeeds(effort * kVaried);
    });
    for (auto& walker : walkers) {
      if (walker->found()) continue;
      result.bounded += walker->estimates();
      walker = nullptr;
    }
    std::erase(walkers, nullptr);
    if (walkers.empty()) return NothingFits(imported, smallest);
    if (all) result.sizes = static_cast<int>(walkers.size());
    KeepBestSizes(all ? kFairSize : kHopelessSize, &walkers);
  }
  const int sizes = static_cast<int>(walkers.size());
  options.for_each(sizes, [&](int i) {
    for (size_t from : {0, 1}) {
      walkers[static_cast<size_t>(i)]->Walk(std::min(kFirstTasks / sizes, kMostFirstTasks) / 2,
                                            kFirstHot, from);
    }
  });
  walkers = MoreWalkers(imported, smaller, std::move(walkers));
  std::unique_ptr<Walker> listed = ListedWalker(imported, schedules, all_sizes);
  const int first = listed != nullptr ? 1 : 0;
  if (listed != nullptr) walkers.insert(walkers.begin(), std::move(listed));
  // Of models of many layers each task and command takes longer.
  const int64_t layers = std::max(profile.layers(), kManyLayers);
  const int64_t tasks = kTasks * kManyLayers / layers, commands = kCommands * kManyLayers / layers;
  options.for_each(static_cast<int>(walkers.size()), [&](int i) {
    Walker& walker = *walkers[static_cast<size_t>(i)];
    if (i >= first) walker.Walk(tasks, kHot, walker.stream() % 2);
    walker.Rehearse(i >= first ? commands : 0);
  });
  if (first > 0) RehearseMore(walkers, commands);
  for (const auto& walker : walkers) {
    result.bounded += walker->estimates();
    result.simulations += walker->rehearsals();
  }
  HARMONY_RETURN_IF_ERROR(Choose(imported, walkers, options, &result));
  return result;
}

}  // namespace harmony
