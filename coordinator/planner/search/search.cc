#include "coordinator/planner/search/search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "coordinator/planner/search/candidate.h"
#include "coordinator/planner/search/effort.h"
#include "coordinator/planner/search/enumeration.h"
#include "coordinator/planner/search/placement.h"
#include "coordinator/planner/search/residency.h"
#include "coordinator/planner/search/scorer.h"
#include "coordinator/planner/search/seeds.h"

namespace harmony::planner {
namespace {

// All plans are looked at when there are no more than this, and the work is enough for them.
constexpr int64_t kFewPlans = 20'000;
constexpr size_t kMostKept = 1024;  // of each pool of plans that wait for a dry run

class Search {
 public:
  Search(const PlanBuilder& builder, const MoveRules& rules, const dispatch::CostFactory& costs,
         const SearchOptions& options, const std::vector<plan::Plan>& starts)
      : builder_(builder),
        model_(builder.model()),
        rules_(rules),
        shape_(builder.Blank()),
        starts_(starts),
        scorer_(builder, rules_, costs),
        random_(1, 7),
        pools_(1) {
    result_.report.lower_bound = scorer_.BoundOfAnyPlan();
    most_work_ = WorkOf(builder, rules_, result_.report.lower_bound, options);
    FindTimes();
  }

  SearchResult Run(const std::vector<model::LayerRange>& partition) {
    SearchReport& report = result_.report;
    const int64_t few = std::min(kFewPlans, most_work_ / kTasksPerPlan);
    const bool all = rules_.groups && CountPlans(model_.num_layers(), rules_, few) <= few;
    if (all) {
      most_kept_ = kFewPlans;
      nearly_best_ = kNearlyBestOfAll;
      ForEachWay(
          [this](Chooser& way) { Consider(AnyPlan(model_.num_layers(), shape_, rules_, way)); });
      most_work_ += Work();  // which leaves all of it for dry runs
    } else {
      TryStarts();
      if (!from_starts_) {
        TrySeeds(partition);
        TrySettings();
        KeepWhatFits();
        LookWhetherFewRunForAll();
        AnnealByBounds();
      }
    }
    // Of all plans the rest of the work goes to what may win by its bound: there are no others.
    const bool proved = DryRunBest(EndAt(all ? 1 : phases_.best)) && all;
    report.exhaustive = proved && SampleOfMicrobatches(shape_) == shape_.num_microbatches;
    if (!proved && result_.found && result_.best.fits_host) {
      const bool expands = CanExpand();
      AnnealByDryRuns(EndAt(expands ? phases_.dry_runs : 1));
      if (expands) Expand(EndAt(1));
    }
    if (few_for_all_) DryRunWhole();
    PreferSmallArena();
    report.bounded = scorer_.counts().plans;
    report.not_fitting = scorer_.counts().not_fitting;
    std::sort(report.simulated.begin(), report.simulated.end(), Better);
    if (report.simulated.size() > kMostReported) report.simulated.resize(kMostReported);
    return std::move(result_);
  }

 private:
  // On devices that are alike: else a cut by the times of one of them fits none.
  void FindTimes() {
    if (!rules_.alike_devices) return;
    const int last = model_.num_layers() - 1;
    for (int layer = 0; layer <= last; ++layer) {
      const auto time_of = [&](command::TaskKind kind) {
        return scorer_.costs().Compute(kind, {layer, layer}, 0).seconds();
      };
      rules_.forward_times.push_back(layer < last ? time_of(command::TaskKind::kForward) : 0);
      rules_.backward_times.push_back(time_of(layer < last ? command::TaskKind::kBackward
                                                           : command::TaskKind::kForwardBackward));
    }
  }

  // ---- Work ----

  int64_t Work() const { return scorer_.counts().tasks + other_work_; }
  int64_t EndAt(double part) const {
    return static_cast<int64_t>(static_cast<double>(most_work_) * part);
  }

  // ---- Plans ----

  static bool Better(const ScoredPlan& a, const ScoredPlan& b) {
    return std::tuple(!a.fits_host, a.score, a.bound.copies) <
           std::tuple(!b.fits_host, b.score, b.bound.copies);
  }

  bool CanWin(const Candidate& candidate) const { return CanWin(candidate, candidate.score, 1); }
  // With that score, by less than so many times the best.
  bool CanWin(const Candidate& candidate, Nanos score, double nearly) const {
    if (!result_.found) return true;
    if (candidate.fits_host != result_.best.fits_host) return candidate.fits_host;
    return static_cast<double>(score.count()) <
           static_cast<double>(result_.best.score.count()) * nearly;
  }

  // The plan waits for a dry run in the newest pool, where it is worth that.
  std::optional<Candidate> Consider(plan::Plan plan) {
    std::optional<Candidate> candidate = scorer_.Score(std::move(plan));
    if (candidate && !KeepBest(candidate->rank, *candidate, most_kept_, &pools_.back())) {
      dropped_ = true;
    }
    return candidate;
  }

  // The score by a dry run; null: the plan does not run.
  std::optional<Nanos> DryRun(const Candidate& candidate) {
    if (const auto known = dry_runs_.find(candidate.key()); known != dry_runs_.end()) {
      return known->second;
    }
    std::optional<Nanos>& score = dry_runs_[candidate.key()];
    SearchReport& report = result_.report;
    const dispatch::CostModel& costs = scorer_.costs().model();
    const auto dry_run = DryRunPlan(model_, candidate.plan, costs, {kDryRunSteps, few_for_all_});
    if (!dry_run.ok()) return score;
    ++report.simulations;
    Nanos step = dry_run->step;
    Count(dry_run->commands);
    const bool is_long = dry_run->commands * kTasksPerCommand > most_work_ / kFewCommands;
    if (!few_for_all_ && !is_long &&
        CanWin(candidate, builder_.Score(candidate.plan, step), nearly_best_)) {
      const absl::StatusOr<Estimate> exact = EvaluatePlan(model_, candidate.plan, costs);
      if (!exact.ok()) return score;
      Count(exact->commands);
      step = exact->step;
    }
    score = builder_.Score(candidate.plan, step);
    ScoredPlan scored{candidate.plan, candidate.bound, step, *score, candidate.fits_host};
    if (!result_.found || Better(scored, result_.best)) {
      result_.found = true;
      result_.best = scored;
    }
    KeepBest(candidate.By(*score), candidate, kMostKept, &dry_run_);
    report.simulated.push_back(std::move(scored));
    return score;
  }

  void Count(int64_t commands) {
    result_.report.commands += commands;
    other_work_ += commands * kTasksPerCommand;
  }

  bool FewDryRuns() const { return TasksOfDryRun() > most_work_ / kFewDryRuns; }
  int64_t TasksOfDryRun() const {
    return result_.report.commands / result_.report.simulations * kTasksPerCommand;
  }
  // Of devices that all run everything.
  void LookWhetherFewRunForAll() {
    const RankedCandidates& seeds = pools_.front();
    if (!rules_.alike_devices || builder_.division().sets != DeviceSets::kAll) return;
    if (seeds.empty()) return;
    const Candidate& seed = seeds.begin()->second;
    if (DevicesToRun(seed.plan, scorer_.costs().model()) == 0 || !DryRun(seed)) return;
    few_for_all_ = FewDryRuns();
    if (few_for_all_) phases_ = kPhasesOfFewForAll;
  }

  // ---- Where a search starts ----

  // Devices, and about how often the groups go round them.
  using Kind = std::pair<std::set<int>, int>;
  static Kind KindOf(const plan::Plan& plan) {
    const std::set<int> devices = UsedBy(plan);
    return {devices, std::ilogb(static_cast<double>(plan.backward_groups.size()) /
                                static_cast<double>(devices.size()))};
  }

  // What other searches have found, and plans like these.
  void TryStarts() {
    for (const plan::Plan& start : starts_) {
      if (result_.found && Work() >= EndAt(phases_.starts)) break;
      const std::optional<Candidate> candidate = ConsiderSeed(WithGroupsOf(start, shape_));
      if (candidate) DryRun(*candidate);
    }
    if (!result_.found) return;
    from_starts_ = FewDryRuns();
    for (const plan::Plan& start : starts_) {
      for (plan::Plan& plan : PlansLike(start, shape_, rules_)) {
        if (Work() >= EndAt(from_starts_ ? phases_.starts : phases_.seeds)) return;
        const std::optional<Candidate> candidate = ConsiderSeed(std::move(plan));
        if (from_starts_ && candidate && CanWin(*candidate)) DryRun(*candidate);
      }
    }
  }

  std::optional<Candidate> ConsiderSeed(plan::Plan plan) {
    std::optional<Candidate> candidate = Consider(plan);
    while (!candidate && plan.stream_slots > 1) {
      --plan.stream_slots;
      candidate = Consider(plan);
    }
    if (candidate) KeepBest(candidate->rank, *candidate, 1, &kinds_[KindOf(candidate->plan)]);
    return candidate;
  }

  void TrySeeds(const std::vector<model::LayerRange>& partition) {
    const size_t devices = rules_.turns;
    for (plan::Plan& seed : SeedPlans(builder_, scorer_.costs(), rules_, partition)) {
      // From few groups to many.
      const bool many = seed.backward_groups.size() > kManyRounds * devices;
      const bool fits = !pools_.front().empty();
      if (fits && Work() > EndAt(phases_.seeds)) break;
      if (fits && many) continue;
      plan::Plan turned = seed;
      ConsiderSeed(std::move(seed));
      if (!rules_.groups || devices == 1 || UsedBy(turned).size() < devices) continue;
      TakeTurns(rules_, 0, &turned);
      ConsiderSeed(std::move(turned));
    }
    if (!pools_.front().empty()) return;
    // What does not fit with stashes on the host may fit with them on the devices, or the reverse.
    for (const plan::Plan& seed : SeedPlans(builder_, scorer_.costs(), rules_, partition)) {
      for (plan::Plan& plan : WithSettings(seed, rules_)) ConsiderSeed(std::move(plan));
    }
  }

  // The best seeds again, with other settings, and then with other sizes of forward tasks.
  void TrySettings() {
    for (const Candidate& seed : Best(pools_.front(), kVaried)) {
      for (plan::Plan& plan : WithSettings(seed.plan, rules_)) Consider(std::move(plan));
    }
    if (rules_.forward_task_sizes.size() == 1) return;
    for (const Candidate& seed : Best(pools_.front(), kVaried)) {
      plan::Plan plan = seed.plan;
      for (int task_microbatches : rules_.forward_task_sizes) {
        plan.microbatches_per_forward_task = task_microbatches;
        Consider(plan);
      }
    }
  }

  // The best seeds again, with weights and activations kept on the devices where there is room: the
  // ones or the others have the first choice.
  void KeepWhatFits() {
    const auto time_of = [this](const plan::Plan& with) -> std::optional<Nanos> {
      const std::optional<Candidate> candidate = scorer_.Score(with);
      return candidate ? std::optional(candidate->score) : std::nullopt;
    };
    for (const Candidate& seed : Best(pools_.front(), kVaried)) {
      plan::Plan plan = seed.plan;
      const plan::Plan weights = KeepWeights(plan, time_of);
      Consider(weights);
      if (!MayKeepActivations(rules_)) continue;
      plan.microbatches_per_forward_task = 1;  // or nothing can be kept
      plan::Plan single = weights;
      single.microbatches_per_forward_task = 1;
      Consider(KeepActivations(std::move(single), time_of));
      Consider(KeepWeights(KeepActivations(plan, time_of), time_of));
    }
  }

  // ---- Annealing ----

  struct Chain {
    MoveRules rules;
    int64_t work = 0;
    double temperature = 0;  // at first, as a part of the score
    bool dry_runs = false;   // else by bounds
  };

  // Random changes of a plan with that score; worse ones are accepted less and less.
  void Anneal(plan::Plan plan, bool fits_host, Nanos score, const Chain& chain) {
    if (chain.work <= 0) return;  // the seeds have taken all of it
    auto now = static_cast<double>(score.count());
    const int64_t begin = Work();
    for (int known_ones = 0; known_ones < kMostKnown; ++known_ones) {
      const double left = 1 - static_cast<double>(Work() - begin) / static_cast<double>(chain.work);
      if (left <= 0) return;
      plan::Plan changed = plan;
      other_work_ += kTasksPerMove;  // so that it ends when nothing can be changed
      bool moved = Move(chain.rules, random_, &changed);
      while (chain.dry_runs && random_.Either()) {
        moved |= Move(chain.rules, random_, &changed);
      }
      if (!moved) continue;
      scorer_.Normalize(&changed);
      const double heat = chain.temperature * left * left * (1 + kHeatOfKnown * known_ones);
      const double most = now * (1 - std::log(1 - random_.Fraction()) * heat);
      const std::string key = KeyOf(changed);
      const PlanScorer::Known* known = scorer_.Find(key);
      const bool fresh = known == nullptr;
      std::optional<Candidate> candidate;
      if (fresh) {
        known_ones = 0;
        candidate = Consider(changed);
        known = scorer_.Find(key);
      }
      if (!known->fits || known->fits_host < fits_host) continue;
      const bool fits_better = known->fits_host > fits_host;
      // Of plans that are bounded alike, the one with the shorter chain.
      double next = static_cast<double>(known->score.count()) +
                    (chain.dry_runs ? 0 : 1e-3 * static_cast<double>(known->chain.count()));
      if (!fits_better && next > most) continue;
      if (chain.dry_runs) {
        if (!fresh && !dry_runs_.contains(key)) candidate = scorer_.Score(changed);
        const std::optional<Nanos> dry = candidate ? DryRun(*candidate) : dry_runs_[key];
        if (candidate) known_ones = 0;
        if (!dry) continue;
        next = static_cast<double>(dry->count());
        if (!fits_better && next > most) continue;
      }
      now = next;
      fits_host = fits_host || fits_better;
      plan = std::move(changed);
    }
  }

  // Chains that stay near begin with the best seeds, those that go far with the best of other
  // kinds: with fewer devices, or with more or fewer groups, which a chain hardly finds by itself.
  void AnnealByBounds() {
    const std::vector<Candidate> seeds = Best(pools_.front(), kBoundChains / 2);
    if (seeds.empty()) return;
    RankedCandidates of_kinds;
    for (const auto& [kind, best] : kinds_) {
      if (kind != KindOf(seeds.front().plan)) of_kinds.insert(*best.begin());
    }
    const std::vector<Candidate> others = Best(of_kinds, kBoundChains / 2);
    const int64_t share = (EndAt(phases_.bounds) - Work()) / static_cast<int64_t>(kBoundChains);
    for (size_t i = 0; i < kBoundChains; ++i) {
      if (i == kChainsToFit && !AnyFitsHost()) return;
      const bool near = i % 2 == 0 || others.empty();
      const std::vector<Candidate>& starts = near ? seeds : others;
      const Candidate& start = starts[i / 2 % starts.size()];
      Chain chain{rules_, share, i % 2 == 0 ? kNear : kFar};
      chain.rules.together = rules_.alike_devices && i % 4 != 0;
      if (!near && rules_.alike_devices && rules_.turns > 1) {
        LimitDevices(UsedBy(start.plan).size(), &chain.rules);
      }
      pools_.emplace_back();
      Anneal(start.plan, start.fits_host, start.score, chain);
    }
  }

  bool AnyFitsHost() const {
    return std::any_of(pools_.begin(), pools_.end(), [](const RankedCandidates& pool) {
      return !pool.empty() && pool.begin()->second.fits_host;
    });
  }

  void AnnealByDryRuns(int64_t end) {
    const std::vector<ScoredPlan> starts = result_.report.simulated;
    const int64_t left = end - Work();
    if (left <= 0) return;
    const bool one_chain = few_for_all_ || from_starts_;
    const int64_t each = kDryRunsOfChain * std::max<int64_t>(TasksOfDryRun(), 1);
    const int64_t chains = one_chain ? 1 : std::clamp<int64_t>(left / each, 1, kDryRunChains);
    for (int64_t i = 0; i < chains; ++i) {
      const bool from_best = i % 2 == 0;
      Chain chain{rules_, (end - Work()) / (chains - i), from_best ? kCool : kHot, true};
      if (chains == 1) chain.temperature = kCold;
      chain.rules.together = i % 4 != 0;
      const ScoredPlan start = from_best ? result_.best : random_.Of(starts);
      Anneal(start.plan, start.fits_host, start.score, chain);
    }
  }

  // ---- Dry runs ----

  // In the order of their bounds, of each pool in turn. True: nothing that is left can win.
  bool DryRunBest(int64_t end) {
    size_t without = 0;  // pools in a row that have nothing left
    for (size_t turn = 0; without < pools_.size(); ++turn) {
      RankedCandidates& pool = pools_[turn % pools_.size()];
      if (pool.empty() || !CanWin(pool.begin()->second)) {
        ++without;
        continue;
      }
      if (result_.found && Work() >= end) return false;
      without = 0;
      DryRun(pool.extract(pool.begin()).mapped());
    }
    return !dropped_;
  }

  bool CanExpand() const {
    const int64_t neighbours = static_cast<int64_t>(model_.num_layers()) *
                               static_cast<int64_t>(rules_.device_choices.size()) * 8;
    const PlanScorer::Counts& counts = scorer_.counts();
    return neighbours * (counts.tasks / counts.plans) <= most_work_ / 2 / kLeastExpansions;
  }

  // Every small change of the plans that promise most, by their bounds and by dry runs in turn,
  // again and again; what may win is run dry when its turn comes.
  void Expand(int64_t end) {
    ExpansionQueue queue;
    for (const RankedCandidates& pool : pools_) {
      for (const auto& [rank, candidate] : pool) {
        queue.Add(std::make_shared<const Candidate>(candidate));
      }
    }
    for (const auto& [rank, candidate] : dry_run_) queue.AddDryRun(rank, candidate);
    absl::flat_hash_set<std::string> seen;
    for (int fruitless = 0; fruitless < kFruitlessExpansions && Work() < end; ++fruitless) {
      const ExpansionQueue::Shared next = queue.Next();
      if (next == nullptr) break;
      const Nanos best = result_.best.score;
      if (CanWin(*next) && DryRun(*next) && result_.best.score < best) fruitless = 0;
      ForEachWay([&](Chooser& way) {
        plan::Plan plan = next->plan;
        if (!Move(rules_, way, &plan)) return;
        scorer_.Normalize(&plan);
        if (!seen.insert(KeyOf(plan)).second) return;
        other_work_ += kTasksPerMove;
        if (const std::optional<Candidate> neighbour = scorer_.Score(std::move(plan))) {
          queue.Add(std::make_shared<const Candidate>(*neighbour));
        }
      });
    }
  }

  // Where few devices were run dry for all, all of them have the last word on the best plans.
  void DryRunWhole() {
    std::vector<ScoredPlan>& simulated = result_.report.simulated;
    std::sort(simulated.begin(), simulated.end(), Better);
    std::vector<ScoredPlan> whole;
    for (ScoredPlan& scored : simulated) {
      if (whole.size() == kDryRunWhole) break;
      const auto run = DryRunPlan(model_, scored.plan, scorer_.costs().model(), {kDryRunSteps});
      if (!run.ok()) continue;
      Count(run->commands);
      scored.step = run->step;
      scored.score = builder_.Score(scored.plan, run->step);
      whole.push_back(std::move(scored));
    }
    simulated = std::move(whole);
    result_.found = !simulated.empty();
    if (result_.found) result_.best = *std::min_element(simulated.begin(), simulated.end(), Better);
  }

  // Of plans that are equally fast, the one that needs the least host memory.
  void PreferSmallArena() {
    const double limit = static_cast<double>(result_.best.score.count()) * (1 + kEquallyFast);
    for (const ScoredPlan& other : result_.report.simulated) {
      if (other.fits_host != result_.best.fits_host) continue;
      if (static_cast<double>(other.score.count()) > limit) continue;
      const auto rank = [](const ScoredPlan& scored) {
        return std::tuple(scored.plan.arena_dynamic, scored.bound.copies, scored.score);
      };
      if (rank(other) < rank(result_.best)) result_.best = other;
    }
  }

  const PlanBuilder& builder_;
  const model::ModelSpec& model_;
  MoveRules rules_;
  const plan::Plan shape_;
  const std::vector<plan::Plan>& starts_;
  PlanScorer scorer_;
  RandomChooser random_;
  int64_t most_work_ = 0, other_work_ = 0;  // the latter beside the scorer's
  size_t most_kept_ = kMostKept;
  double nearly_best_ = 1 + kEquallyFast;  // times the best: what a dry run may put first
  Phases phases_;
  // Dry runs are so few that the first devices stand for all, or others' plans are all there is to
  // change.
  bool few_for_all_ = false, from_starts_ = false;
  bool dropped_ = false;                    // plans that were not worth keeping
  std::vector<RankedCandidates> pools_;     // that wait for a dry run: seeds, then of each chain
  std::map<Kind, RankedCandidates> kinds_;  // the best seed of each
  RankedCandidates dry_run_;                // the best, by their dry runs
  absl::flat_hash_map<std::string, std::optional<Nanos>> dry_runs_;  // scores, by keys
  SearchResult result_;
};

}  // namespace

SearchResult SearchPlans(const PlanBuilder& builder, const MoveRules& rules,
                         const std::vector<model::LayerRange>& partition,
                         const dispatch::CostFactory& costs, const SearchOptions& options,
                         const std::vector<plan::Plan>& starts) {
  return Search(builder, rules, costs, options, starts).Run(partition);
}

}  // namespace harmony::planner
