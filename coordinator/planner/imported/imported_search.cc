#include "coordinator/planner/imported/imported_search.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/planner/device_need.h"
#include "coordinator/planner/imported/walker.h"
#include "coordinator/planner/paper/search.h"
#include "coordinator/planner/plan_builder.h"

namespace harmony {
namespace {

// Of the search under the published cost model, and of its GPUs' memory.
constexpr int64_t kScheduleSteps = 20'000'000;
constexpr double kShares[] = {1, 0.95};
// Of the first walks, one of each size, together, and of each of the walks that follow: tasks to
// estimate; commands to rehearse.
constexpr int64_t kFirstTasks = 8'000'000, kTasks = 7'000'000, kCommands = 200'000;
constexpr double kFirstHot = 0.005, kHot = 0.01;
// A plan whose rehearsed time is longer is not simulated.
constexpr double kMayBeBest = 1.0005;
// Walks of the best size, the second best, ...
constexpr int kWalks[] = {2, 1, 1};

using Walkers = std::vector<std::unique_ptr<Walker>>;

// At the same capacity by the published count of memory, and at a little less, for what we count
// beyond that.
std::vector<paper::Schedule> SchedulesOf(const paper::LayerProfile& profile,
                                         const paper::Machine& machine, paper::Mode mode,
                                         int64_t minibatch, const ImportedSearchOptions& options) {
  std::vector<std::optional<paper::Schedule>> found(std::size(kShares));
  options.for_each(static_cast<int>(std::size(kShares)), [&](int i) {
    paper::Machine smaller = machine;
    smaller.memory_bytes =
        static_cast<int64_t>(static_cast<double>(machine.memory_bytes) * kShares[i]);
    paper::SearchOptions search;
    search.steps = kScheduleSteps;
    absl::StatusOr<paper::SearchResult> result =
        paper::Search(profile, smaller, mode, minibatch, search);
    if (result.ok()) found[static_cast<size_t>(i)] = std::move(result->schedule);
  });
  std::vector<paper::Schedule> schedules;
  for (std::optional<paper::Schedule>& schedule : found) {
    if (schedule) schedules.push_back(*std::move(schedule));
  }
  return schedules;
}

// The most promising sizes first, each with its walkers.
Walkers MoreWalkers(const ImportedModel& imported, Walkers sizes) {
  std::stable_sort(sizes.begin(), sizes.end(),
                   [](const auto& a, const auto& b) { return a->estimate() < b->estimate(); });
  Walkers walkers;
  for (size_t i = 0; i < std::min(sizes.size(), std::size(kWalks)); ++i) {
    for (int stream = 1; stream < kWalks[i]; ++stream) {
      walkers.push_back(std::make_unique<Walker>(imported, sizes[i]->samples(), stream));
      walkers.back()->Adopt(*sizes[i]);
    }
    walkers.push_back(std::move(sizes[i]));
  }
  return walkers;
}

// The best of the walkers' plans, those that may be it simulated whole.
absl::Status Choose(const ImportedModel& imported, const Walkers& walkers,
                    const ImportedSearchOptions& options, ImportedResult* result) {
  std::vector<absl::StatusOr<Estimate>> estimates(walkers.size(),
                                                  absl::NotFoundError("no plan runs"));
  std::optional<Nanos> least;
  for (const auto& walker : walkers) {
    if (walker->best() && (!least || walker->time() < *least)) least = walker->time();
  }
  options.for_each(static_cast<int>(walkers.size()), [&](int i) {
    const Walker& walker = *walkers[static_cast<size_t>(i)];
    const std::optional<Plan>& plan = walker.best();
    if (!plan || walker.time().seconds() > least->seconds() * kMayBeBest) return;
    estimates[static_cast<size_t>(i)] = EvaluatePlan(imported.model, *plan, *imported.costs(*plan));
  });
  std::optional<size_t> best;
  for (size_t i = 0; i < walkers.size(); ++i) {
    if (!estimates[i].ok()) continue;
    ++result->simulations;
    if (!best || estimates[i]->step < estimates[*best]->step) best = i;
  }
  if (!best) return estimates[0].status();
  result->plan = *walkers[*best]->best();
  result->estimate = *std::move(estimates[*best]);
  result->lower_bound = walkers[*best]->LowerBound();
  return absl::OkStatus();
}

// The layer that needs most when each is a group by itself.
absl::Status NothingFits(const ImportedModel& imported, int64_t samples) {
  Plan plan = PlanBuilder(imported.model, imported.job, imported.machine, samples).Blank();
  plan.stream_slots = 1;
  for (int layer = 0; layer < imported.model.num_layers(); ++layer) {
    plan.backward_groups.push_back({{layer, layer}, 0});
  }
  MirrorForward(&plan);
  GroupNeed most;
  for (const GroupNeed& need : NeedOfGroups(imported.model, plan)) {
    if (need.total() > most.total()) most = need;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "no plan fits ", FormatBytesExact(imported.machine.devices[0].memory), " a GPU: layer ",
      most.layers.first, " alone needs ", FormatBytesExact(most.total()), " in ",
      KindName(most.kind), " at a microbatch of ", samples, ", ", FormatBytesExact(most.workspace),
      " of it workspace"));
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
  Walkers walkers;
  for (int64_t samples : ImportedSizes(profile, step_samples)) {
    walkers.push_back(std::make_unique<Walker>(imported, samples, 0));
  }
  const int64_t smallest = walkers[0]->samples();
  const std::vector<paper::Schedule> schedules =
      SchedulesOf(profile, machine, mode, minibatch, options);
  options.for_each(static_cast<int>(walkers.size()),
                   [&](int i) { walkers[static_cast<size_t>(i)]->TrySeeds(schedules); });
  ImportedResult result;
  std::erase_if(walkers, [&](const auto& walker) {
    if (!walker->found()) result.bounded += walker->estimates();
    return !walker->found();
  });
  if (walkers.empty()) return NothingFits(imported, smallest);
  result.sizes = static_cast<int>(walkers.size());
  options.for_each(result.sizes, [&](int i) {
    walkers[static_cast<size_t>(i)]->Walk(kFirstTasks / result.sizes, kFirstHot);
  });
  walkers = MoreWalkers(imported, std::move(walkers));
  options.for_each(static_cast<int>(walkers.size()), [&](int i) {
    walkers[static_cast<size_t>(i)]->Walk(kTasks, kHot);
    walkers[static_cast<size_t>(i)]->Rehearse(kCommands);
  });
  for (const auto& walker : walkers) {
    result.bounded += walker->estimates();
    result.simulations += walker->rehearsals();
  }
  HARMONY_RETURN_IF_ERROR(Choose(imported, walkers, options, &result));
  return result;
}

}  // namespace harmony
