#include "coordinator/planner/imported/imported_search.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/planner/bounds.h"
#include "coordinator/planner/device_need.h"
#include "coordinator/planner/grouping.h"
#include "coordinator/planner/imported/listed_plan.h"
#include "coordinator/planner/paper/search.h"
#include "coordinator/planner/plan_builder.h"

namespace harmony {
namespace {

// Of the ordinary search and of the changes by simulation, for each size that is searched.
constexpr int64_t kSearchTasks = 12'000'000, kSearchCommands = 150'000, kSeedCommands = 200'000,
                  kClimbCommands = 500'000;
constexpr size_t kMostSearched = 2;
// The ordinary search looks at steps of no more microbatches.
constexpr int64_t kMostMicrobatches = 24;
// Of the search under the published cost model, and of its GPUs' memory.
constexpr int64_t kScheduleSteps = 30'000'000;
constexpr double kShares[] = {1, 0.95};
// Seeds that are tried with other settings.
constexpr size_t kMostVaried = 2;
constexpr int kMostSlots = 3;

struct Rated {
  Plan plan;
  Nanos time;
};

// The plans of one microbatch size.
class SizeSearch {
 public:
  SizeSearch(const ImportedModel& imported, int64_t samples)
      : imported_(imported),
        samples_(samples),
        builder_(imported.model, imported.job, imported.machine, samples),
        costs_(imported.costs(builder_.Blank())),
        random_(1, static_cast<uint64_t>(samples)) {
    rules_.most_slots = kMostSlots;
    rules_.alike_devices = true;
    rules_.spans = builder_.ForwardSpans();
    std::erase_if(rules_.spans, [&](int span) {  // not measured
      return ForwardWorkspaceBytes(imported.model, {0, 0}, samples * span, 1) >
             imported.machine.devices[0].memory;
    });
    rules_.activations = false;  // what a backward takes without its recompute was not measured
  }

  // Balanced groups, wrapped around the devices; then the best of them with other settings.
  void TrySeeds() {
    std::vector<Rated> seeds;
    const std::vector<double> times = LayerTimes();
    std::vector<std::vector<LayerGroup>> all;
    for (int groups : GroupCounts()) all.push_back(Balanced(times, groups));
    for (double share : {1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1}) {
      all.push_back(Filled(share));
    }
    // From few groups to many: those take longer.
    std::stable_sort(all.begin(), all.end(),
                     [](const auto& a, const auto& b) { return a.size() < b.size(); });
    for (auto& groups : all) {
      if (seeds.empty() || commands_ < kSeedCommands) TrySeed(std::move(groups), seeds);
    }
    if (seeds.empty()) TrySeed(Balanced(times, imported_.model.num_layers()), seeds);
    std::sort(seeds.begin(), seeds.end(),
              [](const Rated& a, const Rated& b) { return a.time < b.time; });
    if (seeds.size() > kMostVaried) seeds.resize(kMostVaried);
    for (const Rated& seed : seeds) TryVariants(seed.plan, times);
  }

  // What our search under the published cost model finds.
  void TrySchedule(const paper::Schedule& schedule) {
    Plan plan = builder_.Blank();
    if (schedule.u_fwd % schedule.u_bwd == 0) {
      plan.forward_span = static_cast<int>(schedule.u_fwd / schedule.u_bwd);
    }
    SetGroups(schedule, Devices(), &plan);
    if (Try(plan)) TryVariants(plan, LayerTimes());
  }

  // The ordinary search, and random changes of the better of its plan and the best seed.
  void Run() {
    SearchOptions effort;
    effort.tasks = kSearchTasks;
    effort.commands = kSearchCommands;
    JobSpec job = imported_.job;
    job.global_batch_size = std::min(job.global_batch_size, samples_ * kMostMicrobatches);
    const PlanBuilder builder(imported_.model, job, imported_.machine, samples_);
    MoveRules rules = rules_;
    std::erase_if(rules.spans, [&](int span) { return job.global_batch_size / samples_ % span; });
    SearchResult found = SearchPlans(builder, rules, {}, imported_.costs, effort);
    bounded_ = found.report.bounded;
    simulations_ += found.report.simulations;
    if (found.found) {
      Plan plan = std::move(found.best.plan);
      plan.num_microbatches = builder_.Blank().num_microbatches;
      Try(std::move(plan));
    }
    const int64_t begin = commands_;
    while (best_ && commands_ - begin < kClimbCommands) {
      commands_ += 200;  // so that it ends when nothing can be changed
      Plan plan = best_->plan;
      if (!RandomMove(rules_, random_, &plan)) continue;
      if (random_.Below(3) == 0) RandomMove(rules_, random_, &plan);
      Try(std::move(plan));
    }
    if (!best_) return;
    absl::StatusOr<Estimate> estimate = EvaluatePlan(imported_.model, best_->plan, *costs_);
    if (estimate.ok()) estimate_ = *std::move(estimate);
    const Plan shape = builder_.Blank();
    TaskCosts tasks(imported_.model, shape, imported_.costs(shape));
    lower_bound_ = Bounds(imported_.model, tasks).OfAnyPlan(shape, rules_.spans);
  }

  const std::optional<Rated>& best() const { return best_; }
  std::optional<Estimate>& estimate() { return estimate_; }  // of its whole step, after Run
  int64_t samples() const { return samples_; }
  Nanos lower_bound() const { return lower_bound_; }
  int64_t bounded() const { return bounded_; }
  int64_t simulations() const { return simulations_; }

 private:
  int Devices() const { return static_cast<int>(imported_.machine.devices.size()); }

  std::vector<double> LayerTimes() const {
    std::vector<double> times;
    Command command;
    ComputeTask task;
    task.samples = samples_;
    for (int layer = 0; layer < imported_.model.num_layers(); ++layer) {
      double both = 0;
      for (TaskKind kind : {TaskKind::kForward, TaskKind::kBackward}) {
        task.kind = kind;
        task.layers = {layer, layer};
        command.body = task;
        both += costs_->Duration(command).seconds();
      }
      times.push_back(both);
    }
    return times;
  }

  std::vector<int> GroupCounts() const {
    const int layers = imported_.model.num_layers(), devices = Devices();
    std::vector<int> counts;
    for (int rounds : {1, 2, 3, 4, 6, 8, 12}) {
      for (int more : {0, 1}) counts.push_back(std::min(rounds * devices + more, layers));
    }
    std::sort(counts.begin(), counts.end());
    counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
    return counts;
  }

  // From the last layer down, as much in each group as takes a share of a device.
  std::vector<LayerGroup> Filled(double share) const {
    const ModelSpec& model = imported_.model;
    const auto memory = static_cast<double>(imported_.machine.devices[0].memory.count()) * share;
    std::vector<LayerGroup> result;
    for (int last = model.num_layers() - 1; last >= 0; last = result.back().layers.first - 1) {
      int first = last;
      while (first > 0 && static_cast<double>(BytesOf({first - 1, last}).count()) <= memory)
        --first;
      result.push_back({{first, last}, 0});
    }
    std::reverse(result.begin(), result.end());
    return result;
  }

  // Of a backward group with double buffers.
  Bytes BytesOf(LayerRange range) const {
    const ModelSpec& model = imported_.model;
    Bytes bytes = BackwardWorkspaceBytes(model, range, samples_, imported_.job.sequence_length);
    for (int layer = range.first; layer <= range.last; ++layer) {
      bytes += model.blocks[layer].size() * 2;
    }
    if (range.first > 0) bytes += model.measured->Boundary(range.first, samples_) * 4;
    if (range.last + 1 < model.num_layers()) {
      bytes += model.measured->Boundary(range.last + 1, samples_) * 2;
    }
    return bytes;
  }

  void TrySeed(std::vector<LayerGroup> groups, std::vector<Rated>& seeds) {
    Plan plan = builder_.Blank();
    plan.backward_groups = std::move(groups);
    WrapAround(Devices(), 0, &plan.backward_groups);
    MirrorForward(&plan);
    if (const std::optional<Rated> rated = Try(std::move(plan))) seeds.push_back(*rated);
  }

  static std::vector<LayerGroup> Balanced(const std::vector<double>& times, int groups) {
    std::vector<LayerGroup> result;
    for (const LayerRange& layers :
         ProportionalPartition(times, std::vector<double>(static_cast<size_t>(groups), 1))) {
      result.push_back({layers, 0});
    }
    return result;
  }

  void TryVariants(const Plan& seed, const std::vector<double>& times) {
    for (int slots = 1; slots <= kMostSlots; ++slots) {
      for (UpdateMode update : {UpdateMode::kEager, UpdateMode::kDeferred}) {
        Plan plan = seed;
        plan.stream_slots = slots;
        plan.update = update;
        Try(std::move(plan));
      }
    }
    if (!best_) return;
    Plan plan = best_->plan;
    for (LayerGroup& group : plan.backward_groups) group.keep_stash = true;
    Try(std::move(plan));
    // Fewer, larger forward groups, and larger forward tasks.
    const Plan mirrored = best_->plan;
    const int ahead = mirrored.backward_groups.back().layers.first;
    for (int parts : {1, 2, 3}) {
      plan = mirrored;
      const int groups = static_cast<int>(mirrored.forward_groups.size()) / parts;
      if (parts > 1 && (groups < 1 || groups > ahead)) continue;
      if (parts > 1) {
        plan.forward_groups = Balanced({times.begin(), times.begin() + ahead}, groups);
        // So that the device of the last one is another than that of the fused group.
        const int fused = plan.backward_groups.back().device;
        WrapAround(Devices(), fused + (Devices() - groups % Devices()), &plan.forward_groups);
        for (LayerGroup& group : plan.backward_groups) group.keep_weights = false;
      }
      for (int span : {1, 2, 4}) {
        if (plan.num_microbatches % span != 0) continue;
        plan.forward_span = span;
        Try(plan);
      }
    }
  }

  // Simulated; nothing when it does not fit, or was tried before.
  std::optional<Rated> Try(Plan plan) {
    RenameDevices(&plan);
    if (!tried_.insert(absl::StrCat(plan.forward_span, " ", KeyOf(plan))).second) return {};
    StepVisits step;
    if (!builder_.Complete(&plan, &step)) return {};
    const absl::StatusOr<Estimate> estimate =
        EvaluatePlan(imported_.model, plan, *costs_, {.steps = 2});
    if (!estimate.ok()) return {};
    ++simulations_;
    commands_ += estimate->commands;
    Rated rated{std::move(plan), estimate->step};
    if (!best_ || rated.time < best_->time) best_ = rated;
    return rated;
  }

  const ImportedModel& imported_;
  const int64_t samples_;
  const PlanBuilder builder_;
  const std::unique_ptr<CostModel> costs_;
  MoveRules rules_;
  CounterRandom random_;
  absl::flat_hash_set<std::string> tried_;
  std::optional<Rated> best_;
  std::optional<Estimate> estimate_;
  Nanos lower_bound_;
  int64_t bounded_ = 0, simulations_ = 0, commands_ = 0;
};

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
  std::vector<std::unique_ptr<SizeSearch>> sizes;
  for (int64_t samples : ImportedSizes(profile, step_samples)) {
    sizes.push_back(std::make_unique<SizeSearch>(imported, samples));
  }
  const int64_t smallest = sizes[0]->samples();
  // At the same capacity by the published count of memory, and at a little less, for what we count
  // beyond that.
  std::vector<std::optional<paper::Schedule>> schedules(std::size(kShares));
  options.for_each(static_cast<int>(std::size(kShares)), [&](int i) {
    paper::Machine smaller = machine;
    smaller.memory_bytes =
        static_cast<int64_t>(static_cast<double>(machine.memory_bytes) * kShares[i]);
    paper::SearchOptions search;
    search.steps = kScheduleSteps;
    absl::StatusOr<paper::SearchResult> found =
        paper::Search(profile, smaller, mode, minibatch, search);
    if (found.ok()) schedules[static_cast<size_t>(i)] = std::move(found->schedule);
  });
  options.for_each(static_cast<int>(sizes.size()), [&](int i) {
    for (const std::optional<paper::Schedule>& schedule : schedules) {
      if (schedule && schedule->u_bwd == sizes[i]->samples()) sizes[i]->TrySchedule(*schedule);
    }
    sizes[i]->TrySeeds();
  });
  ImportedResult result;
  for (const auto& size : sizes) {
    result.sizes += size->best() ? 1 : 0;
    if (!size->best()) result.simulations += size->simulations();
  }
  std::erase_if(sizes, [](const auto& size) { return !size->best(); });
  if (sizes.empty()) return NothingFits(imported, smallest);
  std::stable_sort(sizes.begin(), sizes.end(),
                   [](const auto& a, const auto& b) { return a->best()->time < b->best()->time; });
  const size_t count = std::min(sizes.size(), kMostSearched);
  options.for_each(static_cast<int>(count), [&](int i) { sizes[i]->Run(); });
  SizeSearch* best = nullptr;
  for (size_t i = 0; i < sizes.size(); ++i) {
    result.bounded += sizes[i]->bounded();
    result.simulations += sizes[i]->simulations();
    const auto& estimate = sizes[i]->estimate();
    if (!estimate) continue;
    if (best == nullptr || estimate->step < best->estimate()->step) best = sizes[i].get();
  }
  if (best == nullptr) return absl::InternalError("the best plan does not run");
  result.plan = best->best()->plan;
  result.estimate = *std::move(best->estimate());
  result.lower_bound = best->lower_bound();
  return result;
}

}  // namespace harmony
