#include "coordinator/planner/imported/walker.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "coordinator/planner/bounds.h"
#include "coordinator/planner/grouping.h"
#include "coordinator/planner/imported/listed_plan.h"

namespace harmony {
namespace {

constexpr int kMostSlots = 3;
constexpr size_t kMostKept = 24;
constexpr size_t kMostVaried = 4;  // seeds that are tried with other settings
// For seeds and their variants.
constexpr int64_t kSeedTasks = 2'000'000;
// Setting up a plan takes as long as so many tasks of each of its visits.
constexpr int64_t kTasksPerVisit = 16, kTasksPerLayer = 4;
constexpr double kCold = 1e-4;  // against a step's time
constexpr int64_t kTasksPerMove = 20;
// Of a walker's rehearsals, begun while there are fewer: for steps of very many microbatches.
constexpr int64_t kMostCommands = 400'000;
// A change is rehearsed when its estimate is not above that of the best plan by more.
constexpr double kPromising = 0.002;

}  // namespace

Walker::Walker(const ImportedModel& imported, int64_t samples, uint64_t stream)
    : imported_(imported),
      samples_(samples),
      builder_(imported.model, imported.job, imported.machine, samples),
      costs_(imported.costs(builder_.Blank())),
      task_costs_(imported.model, builder_.Blank(), imported.costs(builder_.Blank())),
      estimator_(imported.model, task_costs_),
      random_(1, static_cast<uint64_t>(samples) + (stream << 32)) {
  rules_.most_slots = kMostSlots;
  rules_.alike_devices = true;
  rules_.together = true;
  rules_.spans = builder_.ForwardSpans();
  std::erase_if(rules_.spans, [&](int span) {  // not measured
    return ForwardWorkspaceBytes(imported.model, {0, 0}, samples * span, 1) >
           imported.machine.devices[0].memory;
  });
  rules_.activations = false;  // what a backward takes without its recompute was not measured
}

Nanos Walker::LowerBound() {
  return Bounds(imported_.model, task_costs_).OfAnyPlan(builder_.Blank(), rules_.spans);
}

// ---- Seeds ----

std::vector<double> Walker::LayerTimes() {
  std::vector<double> times;
  for (int layer = 0; layer < imported_.model.num_layers(); ++layer) {
    double both = 0;
    for (TaskKind kind : {TaskKind::kForward, TaskKind::kBackward}) {
      both += task_costs_.Compute(kind, {layer, layer}, 0).seconds();
    }
    times.push_back(both);
  }
  return times;
}

std::vector<int> Walker::GroupCounts() const {
  const int layers = imported_.model.num_layers(), devices = Devices();
  std::vector<int> counts;
  for (int rounds : {1, 2, 3, 4, 6, 8, 12, 24}) {
    for (int more : {0, 1}) counts.push_back(std::min(rounds * devices + more, layers));
  }
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

// From the last layer down, as much in each group as takes a share of a device.
std::vector<LayerGroup> Walker::Filled(double share) const {
  const auto memory = static_cast<double>(imported_.machine.devices[0].memory.count()) * share;
  std::vector<LayerGroup> result;
  for (int last = imported_.model.num_layers() - 1; last >= 0;
       last = result.back().layers.first - 1) {
    int first = last;
    while (first > 0 && static_cast<double>(BytesOf({first - 1, last}).count()) <= memory) --first;
    result.push_back({{first, last}, 0});
  }
  std::reverse(result.begin(), result.end());
  return result;
}

// Of a backward group with double buffers.
Bytes Walker::BytesOf(LayerRange range) const {
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

void Walker::TrySeeds(const std::vector<paper::Schedule>& schedules) {
  const std::vector<double> times = LayerTimes();
  std::vector<std::vector<LayerGroup>> all;
  for (int groups : GroupCounts()) {
    std::vector<LayerGroup>& balanced = all.emplace_back();
    for (const LayerRange& layers :
         ProportionalPartition(times, std::vector<double>(static_cast<size_t>(groups), 1))) {
      balanced.push_back({layers, 0});
    }
  }
  for (double share : {1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1}) {
    all.push_back(Filled(share));
  }
  std::vector<LayerGroup>& alone = all.emplace_back();  // fits when anything does
  for (int layer = 0; layer < imported_.model.num_layers(); ++layer) {
    alone.push_back({{layer, layer}, 0});
  }
  for (const paper::Schedule& schedule : schedules) {
    if (schedule.u_bwd != samples_) continue;
    Plan plan = builder_.Blank();
    if (schedule.u_fwd % schedule.u_bwd == 0) {
      plan.forward_span = static_cast<int>(schedule.u_fwd / schedule.u_bwd);
    }
    SetGroups(schedule, Devices(), &plan);
    TryUpdates(plan);
  }
  for (std::vector<LayerGroup>& groups : all) {
    if (found() && work_ > kSeedTasks) break;
    Plan plan = builder_.Blank();
    plan.backward_groups = std::move(groups);
    WrapAround(Devices(), 0, &plan.backward_groups);
    MirrorForward(&plan);
    TryUpdates(plan);
    TakeTurns(Devices(), 0, &plan);
    TryUpdates(plan);
  }
  // Estimates may be wrong for some of them.
  begun_with_ = Best(kMostVaried + 2);
  for (const Plan& plan : Best(kMostVaried)) {
    if (work_ < kSeedTasks) TrySettings(plan);
  }
  for (const Plan& plan : Best(kMostVaried)) {
    if (work_ < kSeedTasks) TryForwards(plan);
  }
}

std::vector<Plan> Walker::Best(size_t most) const {
  std::vector<Plan> best;
  for (const auto& [rank, plan] : kept_) {
    if (best.size() < most) best.push_back(plan);
  }
  return best;
}

void Walker::TryUpdates(const Plan& plan) {
  for (UpdateMode update : {UpdateMode::kEager, UpdateMode::kDeferred}) {
    Plan changed = plan;
    changed.update = update;
    Try(&changed);
  }
}

void Walker::TrySettings(const Plan& plan) {
  for (int slots = 1; slots <= kMostSlots; ++slots) {
    for (UpdateMode update : {UpdateMode::kEager, UpdateMode::kDeferred}) {
      for (bool keep : {false, true}) {
        Plan changed = plan;
        changed.stream_slots = slots;
        changed.update = update;
        for (LayerGroup& group : changed.backward_groups) group.keep_stash = keep;
        Try(&changed);
      }
    }
  }
}

// Fewer, larger forward groups, and larger forward tasks.
void Walker::TryForwards(const Plan& plan) {
  for (size_t parts : {1, 2, 3, 4}) {
    Plan changed = plan;
    if (parts > 1) {
      std::vector<LayerGroup>& groups = changed.forward_groups;
      groups.clear();
      for (size_t i = 0; i < plan.forward_groups.size(); ++i) {
        if (i % parts == 0) groups.push_back(plan.forward_groups[i]);
        groups.back().layers.last = plan.forward_groups[i].layers.last;
      }
      TakeTurns(Devices(), 0, &changed);
      FitForward(&changed);
    }
    for (int span : rules_.spans) {
      changed.forward_span = span;
      Plan copy = changed;
      Try(&copy);
    }
  }
}

// ---- Estimates ----

std::optional<Nanos> Walker::Estimate(Plan* plan) {
  RenameDevices(plan);
  if (plan->forward_groups.empty()) plan->forward_span = 1;
  ++estimates_;
  const bool fits = builder_.Complete(plan, &step_);
  work_ += static_cast<int64_t>(step_.visits.size()) * kTasksPerVisit +
           static_cast<int64_t>(imported_.model.num_layers()) * kTasksPerLayer;
  if (!fits) return std::nullopt;
  work_ += static_cast<int64_t>(step_.visits.size()) * plan->num_forwards();
  return estimator_.Estimate(*plan, step_, plan->num_microbatches);
}

void Walker::Keep(Nanos time, const Plan& plan) {
  if (kept_.size() >= kMostKept && time >= kept_.rbegin()->first.first) return;
  kept_.emplace(Rank(time, KeyOf(plan)), plan);
  if (kept_.size() > kMostKept) kept_.erase(std::prev(kept_.end()));
}

std::optional<Nanos> Walker::Try(Plan* plan) {
  const std::optional<Nanos> time = Estimate(plan);
  if (time) Keep(*time, *plan);
  return time;
}

void Walker::Walk(int64_t effort, double hot) {
  if (kept_.empty()) return;
  Plan current = kept_.begin()->second;
  // Where the estimate is wrong for once, a walk may end there: what it began with is rehearsed,
  // too.
  begun_with_.push_back(current);
  Nanos now = kept_.begin()->first.first;
  const auto start = static_cast<double>(now.count());
  const int64_t begin = work_;
  while (work_ < begin + effort) {
    work_ += kTasksPerMove;  // so that it ends when nothing can be changed
    const double done = static_cast<double>(work_ - begin) / static_cast<double>(effort);
    const double temperature = start * hot * std::pow(kCold / hot, done);
    Plan changed = current;
    if (!RandomMove(rules_, random_, &changed)) continue;
    const std::optional<Nanos> time = Try(&changed);
    if (!time) continue;
    const double worse = static_cast<double>((*time - now).count());
    if (worse > 0 && random_.NextDouble() >= std::exp(-worse / temperature)) continue;
    current = std::move(changed);
    now = *time;
  }
}

// ---- Rehearsals ----

std::optional<Nanos> Walker::RehearsedStep(const Plan& plan) {
  const absl::StatusOr<RehearsedPlan> rehearsed = RehearsePlan(imported_.model, plan, *costs_, 2);
  if (!rehearsed.ok()) return std::nullopt;
  ++rehearsals_;
  commands_ += rehearsed->commands;
  return rehearsed->step;
}

bool Walker::TakeIfBetter(const Plan& plan) {
  if (!rehearsed_.insert(KeyOf(plan)).second) return false;
  const std::optional<Nanos> time = RehearsedStep(plan);
  if (!time || (best_ && *time >= best_time_)) return false;
  best_ = plan;
  best_time_ = *time;
  return true;
}

void Walker::Rehearse(int64_t effort) {
  const int64_t first = commands_;
  for (const Plan& plan : begun_with_) {
    if (best_ && commands_ - first > kMostCommands / 2) break;
    TakeIfBetter(plan);
  }
  const int64_t begin = commands_;
  effort = std::min(effort, kMostCommands - (begin - first));
  for (const auto& [rank, plan] : kept_) {
    if (best_ && commands_ - begin > effort / 2) break;
    TakeIfBetter(plan);
  }
  if (!best_) return;
  Plan best = *best_;
  std::optional<Nanos> estimate = Estimate(&best);
  while (estimate && commands_ - begin < effort) {
    commands_ += 100;  // so that it ends when nothing can be changed
    Plan changed = *best_;
    if (!RandomMove(rules_, random_, &changed)) continue;
    if (random_.Below(3) == 0) RandomMove(rules_, random_, &changed);
    const std::optional<Nanos> time = Estimate(&changed);
    const double limit = static_cast<double>(estimate->count()) * (1 + kPromising);
    if (!time || static_cast<double>(time->count()) > limit) continue;
    if (TakeIfBetter(changed)) estimate = time;
  }
}

}  // namespace harmony
