#include "coordinator/planner/imported/walker.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "coordinator/planner/bounds.h"
#include "coordinator/planner/imported/listed_plan.h"
#include "coordinator/planner/imported/seed_groups.h"

namespace harmony {
namespace {

constexpr size_t kMostKept = 24;
// Seeds that are tried with other settings, and with other forward groups.
constexpr size_t kMostSet = 8, kMostVaried = 4;
// Seeds that are rehearsed, where the estimate is not worse than the best one's by more.
constexpr size_t kMostRehearsed = 8;
constexpr double kNear = 0.08, kHopeless = 1.25;
// Setting up a plan takes as long as so many tasks of each of its visits.
constexpr int64_t kTasksPerVisit = 16, kTasksPerLayer = 7;
// A step of more tasks is estimated by two shorter ones.
constexpr int64_t kMostTasks = 12'000;
constexpr int kShortStep = 24, kShortStepPerDevice = 3;
// Two shorter steps, of n and 2n microbatches, are looked at when there are at least as many n.
constexpr int kWorthShortening = 5;
// Of groups that grow towards the others.
constexpr double kTapers[] = {0.4, 0.7, 1};
// One of so many random changes is of all forward or backward groups.
constexpr uint64_t kMovesPerRamp = 12;
// A walk begins with a plan that is at most so many times longer than the best.
constexpr double kWorthWalk = 1.05;
constexpr double kCold = 1e-4;  // against a step's time
constexpr int64_t kTasksPerMove = 20;

}  // namespace

Walker::Walker(const ImportedModel& imported, int64_t samples, uint64_t stream)
    : imported_(imported),
      samples_(samples),
      stream_(stream),
      builder_(imported.model, imported.job, imported.machine, samples),
      costs_(imported.costs(builder_.Blank())),
      task_costs_(imported.model, builder_.Blank(), imported.costs(builder_.Blank())),
      estimator_(imported.model, task_costs_),
      random_(1, static_cast<uint64_t>(samples) + (stream << 32)),
      forward_times_(TimesOf(TaskKind::kForward)),
      backward_times_(TimesOf(TaskKind::kBackward)) {
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

std::vector<double> Walker::TimesOf(TaskKind kind) {
  std::vector<double> times;
  for (int layer = 0; layer < imported_.model.num_layers(); ++layer) {
    times.push_back(task_costs_.Compute(kind, {layer, layer}, 0).seconds());
  }
  return times;
}

std::vector<double> Walker::LayerTimes() {
  std::vector<double> times = forward_times_;
  for (size_t layer = 0; layer < times.size(); ++layer) times[layer] += backward_times_[layer];
  return times;
}

// Other forward or backward groups, all at once; the devices take turns.
void Walker::Ramp(bool forward, int count, int ramp, double taper, Plan* plan) {
  if (forward) {
    plan->forward_groups =
        RampedGroups(forward_times_, plan->backward_groups.back().layers.first, count, ramp, taper);
  } else {
    plan->backward_groups =
        RampedGroups(backward_times_, imported_.model.num_layers(), count, ramp, taper);
  }
  FitForward(plan);
  TakeTurns(Devices(), 0, plan);
}

bool Walker::RandomRamp(Plan* plan) {
  const bool forward = random_.Below(2) == 0;
  const std::vector<LayerGroup>& groups = forward ? plan->forward_groups : plan->backward_groups;
  if (groups.empty()) return false;
  const auto count = static_cast<uint64_t>(groups.size());
  // Half to twice as many.
  const auto other = static_cast<int>((count + 1) / 2 + random_.Below(count + count / 2 + 1));
  const int ramp = static_cast<int>(random_.Below(static_cast<uint64_t>(2 * Devices())));
  Ramp(forward, other, ramp, 0.3 + 0.7 * random_.NextDouble(), plan);
  return true;
}

void Walker::TrySeeds(const std::vector<paper::Schedule>& schedules,
                      const std::vector<paper::Schedule>& published, int64_t effort) {
  const int layers = imported_.model.num_layers();
  const int64_t begin = work_;
  const auto enough = [&](int64_t part) { return found() && work_ - begin > effort / part; };
  const auto try_schedules = [&](bool of_this_size) {
    for (const paper::Schedule& schedule : schedules) {
      if ((schedule.u_bwd == samples_) == of_this_size && !enough(1)) TrySchedule(schedule);
    }
  };
  for (const paper::Schedule& schedule : published) {
    if (!enough(2)) TrySchedule(schedule);
  }
  try_schedules(true);
  TryEqual(1, begin + effort);
  if (!found()) TrySmallest();
  for (double share : {1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1}) {
    if (!enough(1)) TryGroups(FilledGroups(imported_, samples_, share));
  }
  for (int size : {2, 3, 4, 6, 8}) {
    if (!enough(1)) TryEqual(size, begin + effort);
  }
  for (std::vector<LayerGroup>& groups :
       BalancedGroups(LayerTimes(), GroupCounts(layers, Devices()))) {
    if (!enough(1)) TryGroups(std::move(groups));
  }
  for (int count : GroupCounts(layers, Devices())) {
    for (double taper : kTapers) {
      if (!enough(1)) {
        TryGroups(RampedGroups(LayerTimes(), layers, count, Devices(), taper));
      }
    }
  }
  try_schedules(false);
}

void Walker::VarySeeds(int64_t effort) {
  SortSeeds();
  const int64_t end = work_ + effort;
  const size_t set = std::min(seeds_.size(), kMostSet), varied = std::min(set, kMostVaried);
  for (size_t i = 0; i < set && work_ < end; ++i) TrySettings(&seeds_[i]);
  RankSeeds();
  for (size_t i = 0; i < std::min(seeds_.size(), varied) && work_ < end; ++i) {
    TryForwards(seeds_[i].plan, end);
  }
}

void Walker::TrySchedule(const paper::Schedule& schedule) {
  Plan plan = builder_.Blank();
  SetGroups(schedule, Devices(), &plan);
  for (int span : ForwardSpansOf(schedule.u_fwd, samples_, plan.num_microbatches)) {
    if (std::find(rules_.spans.begin(), rules_.spans.end(), span) == rules_.spans.end()) continue;
    plan.forward_span = span;
    TrySeed(plan);
  }
}

// So much slower than the best that other updates or devices do not help.
bool Walker::Hopeless(Nanos time) const {
  return time.seconds() > estimate().seconds() * kHopeless;
}

// The forward groups are the same; the devices take turns in the order of the groups or in that of
// the tasks.
std::optional<Nanos> Walker::TryGroups(std::vector<LayerGroup> groups) {
  Plan plan = builder_.Blank();
  plan.backward_groups = std::move(groups);
  WrapAround(Devices(), 0, &plan.backward_groups);
  MirrorForward(&plan);
  const std::optional<Nanos> wrapped = TrySeed(plan);
  if (wrapped && Hopeless(*wrapped)) return wrapped;
  TakeTurns(Devices(), 0, &plan);
  const std::optional<Nanos> turned = TrySeed(plan);
  return wrapped && turned ? std::min(wrapped, turned) : wrapped ? wrapped : turned;
}

// Groups of `size` layers, and a last group that grows for as long as that is for the better, until
// so much work is done.
void Walker::TryEqual(int size, int64_t end) {
  const int layers = imported_.model.num_layers();
  std::optional<Nanos> best;
  for (int tail = std::min(size, layers), worse = 0; tail <= layers && worse < 3; ++tail) {
    if (found() && work_ > end) return;
    const std::optional<Nanos> time = TryGroups(EqualGroups(layers, size, tail));
    if (time && (!best || *time < *best)) {
      best = time;
      worse = 0;
    } else {
      ++worse;
    }
  }
}

// What fits when anything does, nearly.
void Walker::TrySmallest() {
  Plan plan = builder_.Blank();
  plan.stream_slots = 1;
  plan.backward_groups = EqualGroups(imported_.model.num_layers(), 1, 1);
  MirrorForward(&plan);
  Plan packed = plan;
  SpreadByNeed(imported_, LayerTimes(), &plan);
  TrySeed(plan);
  SpreadByNeed(imported_, {}, &packed);
  TrySeed(packed);
}

// With fewer slots, too, where it does not fit.
std::optional<Nanos> Walker::TrySeed(const Plan& plan) {
  const auto [tried, added] = tried_.try_emplace(KeyOf(plan));
  if (!added) return tried->second;
  std::optional<Seed> best;
  for (UpdateMode update : {UpdateMode::kEager, UpdateMode::kDeferred}) {
    Plan changed = plan;
    changed.update = update;
    std::optional<Nanos> time = Try(&changed);
    while (!time && changed.stream_slots > 1) {
      --changed.stream_slots;
      time = Try(&changed);
    }
    if (time && (!best || *time < best->time)) best = Seed{*time, std::move(changed)};
    if (best && Hopeless(best->time)) break;
  }
  if (!best) return std::nullopt;
  tried->second = best->time;
  seeds_.push_back(*std::move(best));
  return seeds_.back().time;
}

void Walker::SortSeeds() {
  std::stable_sort(seeds_.begin(), seeds_.end(),
                   [](const Seed& a, const Seed& b) { return a.time < b.time; });
}

void Walker::RankSeeds() {
  SortSeeds();
  std::set<std::string> seen;
  std::erase_if(seeds_, [&](const Seed& seed) { return !seen.insert(KeyOf(seed.plan)).second; });
  for (size_t i = 0; i < std::min(seeds_.size(), kMostRehearsed); ++i) {
    if (seeds_[i].time.seconds() > seeds_[0].time.seconds() * (1 + kNear)) break;
    begun_with_.push_back(seeds_[i].plan);
  }
}

void Walker::Adopt(const Walker& other) {
  if (&imported_ == &other.imported_) {
    kept_ = other.kept_;
    best_of_span_ = other.best_of_span_;
    begun_with_ = other.begun_with_;
    return;
  }
  const auto adopt = [&](Plan plan) {
    plan.devices = builder_.Blank().devices;
    TrySeed(plan);
  };
  for (const auto& [rank, plan] : other.kept_) adopt(plan);
  for (const Seed& seed : other.seeds_) adopt(seed.plan);
  RankSeeds();
}

void Walker::TrySettings(Seed* seed) {
  const Plan plan = seed->plan;
  for (int slots = 1; slots <= kMostSlots; ++slots) {
    for (UpdateMode update : {UpdateMode::kEager, UpdateMode::kDeferred}) {
      for (bool keep : {false, true}) {
        Plan changed = plan;
        changed.stream_slots = slots;
        changed.update = update;
        for (LayerGroup& group : changed.backward_groups) group.keep_stash = keep;
        const std::optional<Nanos> time = Try(&changed);
        if (time && *time < seed->time) *seed = {*time, std::move(changed)};
      }
    }
  }
}

// Fewer, larger forward groups, ramps of them, and larger forward tasks.
void Walker::TryForwards(const Plan& plan, int64_t end) {
  const int layers = plan.backward_groups.back().layers.first;
  if (layers == 0) return;
  for (int span : rules_.spans) {
    for (int count : GroupCounts(layers, Devices())) {
      if (work_ > end) return;
      for (double taper : kTapers) {
        Plan changed = plan;
        changed.forward_span = span;
        Ramp(true, count, Devices(), taper, &changed);
        Try(&changed);
      }
    }
  }
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
  const int all = plan->num_microbatches, fewer = FewerMicrobatches(*plan);
  const auto estimate = [&](int microbatches) {
    work_ += TasksOf(*plan, microbatches) * 2;
    StepEstimator& estimator = microbatches == all ? estimator_ : EstimatorOf(microbatches);
    return estimator.Estimate(*plan, step_, microbatches);
  };
  if (fewer == 0) return estimate(all);
  const Nanos of_fewer = estimate(fewer), of_more = estimate(2 * fewer);
  const int64_t extended =
      ShortSteps{fewer, 2 * fewer}.Extend(of_fewer.count(), of_more.count(), all);
  return std::max(Nanos(extended), BoundOf(*plan));
}

// What the lanes have to do: a short step may wait for other things, a long one does not. REQUIRES:
// the visits at hand are the plan's.
Nanos Walker::BoundOf(const Plan& plan) {
  constexpr int kTasks = 4;
  return Bounds(imported_.model, task_costs_).OfPlan(plan, step_, kTasks * plan.forward_span).step;
}

// Of the shorter of two steps that stand for the plan's; 0 where it is followed as it is. As many
// as the work allows, of few numbers: each has costs of its own.
int Walker::FewerMicrobatches(const Plan& plan) const {
  const int span = plan.forward_span, all = plan.num_microbatches;
  if (TasksOf(plan, all) <= kMostTasks) return 0;
  const auto multiple = [span](int count) { return (count + span - 1) / span * span; };
  int fewer = std::max(kShortStep, kShortStepPerDevice * Devices());
  while (3 * TasksOf(plan, multiple(2 * fewer)) <= kMostTasks) fewer *= 2;
  fewer = multiple(fewer);
  return kWorthShortening * fewer <= all ? fewer : 0;
}

StepEstimator& Walker::EstimatorOf(int microbatches) {
  std::unique_ptr<ShortStep>& step = short_[microbatches];
  if (step == nullptr) {
    step = std::make_unique<ShortStep>(imported_, builder_.Blank(), microbatches, *costs_);
  }
  return step->estimator;
}

void Walker::Keep(Nanos time, const Plan& plan) {
  const auto [of_span, added] = best_of_span_.try_emplace(plan.forward_span, Seed{time, plan});
  if (!added && time < of_span->second.time) of_span->second = Seed{time, plan};
  if (kept_.size() >= kMostKept && time >= kept_.rbegin()->first.first) return;
  kept_.emplace(Rank(time, KeyOf(plan)), plan);
  if (kept_.size() > kMostKept) kept_.erase(std::prev(kept_.end()));
}

std::optional<Nanos> Walker::Try(Plan* plan) {
  const std::optional<Nanos> time = Estimate(plan);
  if (time) Keep(*time, *plan);
  return time;
}

// By time; one that is far from the best is not worth a walk.
const Walker::Seed& Walker::Start(size_t from) const {
  std::vector<const Seed*> starts;
  for (const auto& [span, seed] : best_of_span_) starts.push_back(&seed);
  std::stable_sort(starts.begin(), starts.end(),
                   [](const Seed* a, const Seed* b) { return a->time < b->time; });
  const double limit = starts[0]->time.seconds() * kWorthWalk;
  const bool worth = from < starts.size() && starts[from]->time.seconds() <= limit;
  return *starts[worth ? from : 0];
}

void Walker::Walk(int64_t effort, double hot, size_t from) {
  if (kept_.empty()) return;
  const Seed& seed = Start(from);
  Plan current = seed.plan;
  // Where the estimate is wrong for once, a walk may end there: what it began with is rehearsed,
  // too.
  begun_with_.push_back(current);
  Nanos now = seed.time;
  const auto start = static_cast<double>(now.count());
  const int64_t begin = work_;
  while (work_ < begin + effort) {
    work_ += kTasksPerMove;  // so that it ends when nothing can be changed
    const double done = static_cast<double>(work_ - begin) / static_cast<double>(effort);
    const double temperature = start * hot * std::pow(kCold / hot, done);
    Plan changed = current;
    const bool ramp = random_.Below(kMovesPerRamp) == 0;
    if (!(ramp ? RandomRamp(&changed) : RandomMove(rules_, random_, &changed))) continue;
    const std::optional<Nanos> time = Try(&changed);
    if (!time) continue;
    const double worse = static_cast<double>((*time - now).count());
    if (worse > 0 && random_.NextDouble() >= std::exp(-worse / temperature)) continue;
    current = std::move(changed);
    now = *time;
  }
}

}  // namespace harmony
