// Walker: what the dispatcher makes of the plans.

#include <algorithm>
#include <utility>

#include "coordinator/planner/imported/walker.h"

namespace harmony {
namespace {

constexpr size_t kMostFinalists = 6;
// Tasks to estimate that take as long as a command to rehearse.
constexpr int64_t kTasksPerCommand = 12;
constexpr int64_t kCommandsPerMove = 20;
// Of a walker's rehearsals, begun while there are fewer: for steps of very many microbatches.
constexpr int64_t kMostCommands = 300'000;
// A change is rehearsed when its estimate is not above that of the best plan by more.
constexpr double kPromising = 0.002;

}  // namespace

std::optional<Nanos> Walker::RehearsedStep(const Plan& plan) {
  const absl::StatusOr<RehearsedPlan> rehearsed = RehearseStep(imported_.model, plan, *costs_);
  if (!rehearsed.ok()) return std::nullopt;
  ++rehearsals_;
  commands_ += rehearsed->commands;
  if (!ShortStepsFor(plan, kMostTasksOfAStep)) return rehearsed->step;
  Plan copy = plan;
  builder_.Complete(&copy, &step_);
  return std::max(rehearsed->step, BoundOf(copy));
}

bool Walker::Check() {
  const auto& [rank, plan] = *kept_.begin();
  if (rank.second == checked_) return false;
  checked_ = rank.second;
  longer_ = 1;
  if (FewerMicrobatches(plan) == 0) return true;
  const std::optional<Nanos> time = RehearsedStep(plan);
  if (time) longer_ = std::max(1.0, time->seconds() / rank.first.seconds());
  return true;
}

bool Walker::TakeIfBetter(const Plan& plan) {
  if (!rehearsed_.insert(KeyOf(plan)).second) return false;
  const std::optional<Nanos> time = RehearsedStep(plan);
  if (!time) return false;
  finalists_.emplace(Rank(*time, KeyOf(plan)), plan);
  if (finalists_.size() > kMostFinalists) finalists_.erase(std::prev(finalists_.end()));
  if (best_ && *time >= best_time_) return false;
  best_ = plan;
  best_time_ = *time;
  return true;
}

// The estimate may be wrong about the best plan's slots and updates.
void Walker::RehearseSettings(int64_t end) {
  const Plan best = *best_;
  for (int slots = 1; slots <= kMostSlots; ++slots) {
    for (UpdateMode update : {UpdateMode::kEager, UpdateMode::kDeferred}) {
      if (commands_ > end) return;
      Plan changed = best;
      changed.stream_slots = slots;
      changed.update = update;
      if (Estimate(&changed)) TakeIfBetter(changed);
    }
  }
}

void Walker::Rehearse(int64_t effort) {
  const int64_t end = commands_ + kMostCommands;
  for (const Plan& plan : begun_with_) {
    if (best_ && commands_ > end - kMostCommands / 2) break;
    TakeIfBetter(plan);
  }
  first_finalists_ = finalists_;
  const int64_t begin = commands_;
  effort = std::min(effort, end - begin);
  for (const auto& [rank, plan] : kept_) {
    if (best_ && commands_ - begin > effort / 2) break;
    TakeIfBetter(plan);
  }
  if (!best_ || effort <= 0) return;
  RehearseSettings(end);
  Plan best = *best_;
  std::optional<Nanos> estimate = Estimate(&best);
  while (estimate && commands_ - begin < effort) {
    commands_ += kCommandsPerMove;  // so that it ends when nothing can be changed
    Plan changed = *best_;
    if (!RandomMove(rules_, random_, &changed)) continue;
    if (random_.Below(3) == 0) RandomMove(rules_, random_, &changed);
    const int64_t work = work_;
    const std::optional<Nanos> time = Estimate(&changed);
    commands_ += (work_ - work) / kTasksPerCommand;
    const double limit = static_cast<double>(estimate->count()) * (1 + kPromising);
    if (!time || static_cast<double>(time->count()) > limit) continue;
    if (TakeIfBetter(changed)) estimate = time;
  }
  RehearseSettings(end);
  finalists_.merge(first_finalists_);
}

}  // namespace harmony
