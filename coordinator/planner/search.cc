#include "coordinator/planner/search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "coordinator/planner/enumeration.h"
#include "coordinator/planner/residency.h"
#include "coordinator/planner/seeds.h"

namespace harmony {
namespace {

constexpr size_t kMostKept = 64;  // plans that wait for a simulation
constexpr size_t kMostReported = 16;
constexpr size_t kWalks = 8;
constexpr int kFruitlessMoves = 400;
// All plans are looked at when there are no more than this.
constexpr int64_t kFewPlans = 20'000;
// Setting up a plan takes about as long as bounding so many of its tasks, for each group.
constexpr int64_t kTasksPerGroup = 60;
constexpr size_t kManyRounds = 16;   // around the devices; more only where fewer do not fit
constexpr int64_t kManyVisits = 64;  // then also for each pair of groups

class Search {
 public:
  Search(const PlanBuilder& builder, const MoveRules& rules, const CostFactory& costs,
         const SearchOptions& options)
      : builder_(builder),
        model_(builder.model()),
        rules_(rules),
        shape_(builder.Blank()),
        costs_(model_, shape_, costs(shape_)),
        bounds_(model_, costs_),
        options_(options),
        random_(1, 7) {
    const int64_t layers = model_.num_layers();
    if (options_.commands == 0) options_.commands = 600'000 + 600 * layers;
    if (options_.tasks == 0) options_.tasks = 36'000'000 + 100'000 * layers;
    if (!rules.groups) options_.tasks /= 10;  // there is little to change
  }

  SearchResult Run(const std::vector<LayerRange>& partition) {
    SearchReport& report = result_.report;
    report.lower_bound = bounds_.OfAnyPlan(shape_, rules_.spans);
    const bool all =
        rules_.groups && CountPlans(model_.num_layers(), shape_, rules_, kFewPlans) <= kFewPlans;
    if (all) {
      most_kept_ = kFewPlans;
      EnumeratePlans(model_.num_layers(), shape_, rules_, [this](Plan plan) { Consider(plan); });
    } else {
      for (Plan& seed : SeedPlans(builder_, costs_, rules_, partition)) {
        // From few groups to many.
        const bool many =
            seed.backward_groups.size() > kManyRounds * static_cast<size_t>(DeviceChoices(shape_));
        if (!kept_.empty() && (many || tasks_ > options_.tasks / 8)) break;
        Consider(std::move(seed));
      }
      TrySpans();
      KeepWhatFits();
      Anneal();
    }
    report.exhaustive = SimulateKept() && all;
    if (!all && result_.found) {
      Refine(rules_);
      MoveRules together = rules_;
      together.together = true;
      if (rules_.groups) Refine(together);
    }
    PreferSmallArena();
    std::sort(report.simulated.begin(), report.simulated.end(), Better);
    if (report.simulated.size() > kMostReported) report.simulated.resize(kMostReported);
    return std::move(result_);
  }

 private:
  using Rank = std::tuple<bool, Nanos, Nanos, Nanos, std::string>;  // the last one is the key
  struct Candidate {
    Plan plan;
    PlanBound bound;
    Nanos score;  // of the bound
    bool fits_host = true;
    Rank rank;
  };

  static bool Better(const ScoredPlan& a, const ScoredPlan& b) {
    return std::tuple(!a.fits_host, a.score, a.bound.copies) <
           std::tuple(!b.fits_host, b.score, b.bound.copies);
  }

  bool WorkLeft() const { return tasks_ < options_.tasks; }
  bool CommandsLeft() const { return result_.report.commands < options_.commands; }
  bool CanWin(const Candidate& candidate) const {
    if (!result_.found) return true;
    if (candidate.fits_host != result_.best.fits_host) return candidate.fits_host;
    return candidate.score < result_.best.score;
  }

  std::optional<Candidate> Bound(Plan plan) {
    Candidate candidate;
    candidate.plan = std::move(plan);
    if (rules_.alike_devices) RenameDevices(&candidate.plan);
    if (candidate.plan.forward_groups.empty()) candidate.plan.forward_span = 1;
    if (candidate.plan.forward_span > 1) {
      for (LayerGroup& group : candidate.plan.backward_groups) group.keep_activations = false;
    }
    ++result_.report.bounded;
    StepVisits step;
    const bool fits = builder_.Complete(&candidate.plan, &step);
    const auto visits = static_cast<int64_t>(step.visits.size());
    tasks_ += visits * (kTasksPerGroup + (visits > kManyVisits ? visits : 0));
    if (!fits) {
      ++result_.report.not_fitting;
      return std::nullopt;
    }
    tasks_ += visits * candidate.plan.share_microbatches();
    candidate.bound = bounds_.OfPlan(candidate.plan, step);
    const PlanBound& bound = candidate.bound;
    candidate.score = builder_.Score(candidate.plan, bound.step);
    candidate.fits_host = builder_.FitsHost(candidate.plan);
    candidate.rank = {!candidate.fits_host, candidate.score, bound.chain, bound.copies,
                      KeyOf(candidate.plan)};
    return candidate;
  }

  void Keep(const Candidate& candidate) {
    if (kept_.size() >= most_kept_ && candidate.rank >= kept_.rbegin()->first) {
      dropped_ = true;
      return;
    }
    if (done_.contains(std::get<std::string>(candidate.rank))) return;
    kept_.emplace(candidate.rank, candidate);
    if (kept_.size() <= most_kept_) return;
    kept_.erase(std::prev(kept_.end()));
    dropped_ = true;
  }

  void Consider(Plan plan) {
    if (const std::optional<Candidate> candidate = Bound(std::move(plan))) Keep(*candidate);
  }

  std::vector<Plan> BestKept() const {
    std::vector<Plan> plans;
    for (const auto& [rank, candidate] : kept_) {
      if (plans.size() < kWalks) plans.push_back(candidate.plan);
    }
    return plans;
  }

  // The best seeds again, with other sizes of forward tasks.
  void TrySpans() {
    if (rules_.spans.size() == 1) return;
    for (Plan& plan : BestKept()) {
      for (int span : rules_.spans) {
        plan.forward_span = span;
        Consider(plan);
      }
    }
  }

  // The best seeds again, with weights and activations kept on the devices where there is room: the
  // ones or the others have the first choice.
  void KeepWhatFits() {
    const auto time_of = [this](const Plan& with) -> std::optional<Nanos> {
      const std::optional<Candidate> candidate = Bound(with);
      return candidate ? std::optional(candidate->score) : std::nullopt;
    };
    for (Plan& plan : BestKept()) {
      const Plan weights = KeepWeights(plan, time_of);
      Consider(weights);
      if (!MayKeepActivations(rules_)) continue;
      plan.forward_span = 1;  // or nothing can be kept
      Plan single = weights;
      single.forward_span = 1;
      Consider(KeepActivations(std::move(single), time_of));
      Consider(KeepWeights(KeepActivations(plan, time_of), time_of));
    }
  }

  // Random changes from the best seeds, worse ones accepted less and less; some walks stay close to
  // the ground, some go far.
  void Anneal() {
    std::vector<Candidate> seeds;
    for (const auto& [rank, candidate] : kept_) {
      if (seeds.size() < kWalks / 2) seeds.push_back(candidate);
    }
    if (seeds.empty()) return;
    const int64_t begin = tasks_,
                  share = (options_.tasks - begin) * 3 / 4 / static_cast<int64_t>(kWalks);
    for (size_t walk = 0; walk < kWalks; ++walk) {
      Walk(seeds[walk % seeds.size()], begin + share * static_cast<int64_t>(walk), share,
           walk % 2 == 0 ? 0.02 : 0.2);
    }
  }

  void Walk(Candidate current, int64_t from, int64_t share, double warmth) {
    while (tasks_ < from + share) {
      const double left = 1 - static_cast<double>(tasks_ - from) / static_cast<double>(share);
      Plan changed = current.plan;
      tasks_ += 20;  // so that it ends when nothing can be changed
      if (!RandomMove(rules_, random_, &changed)) continue;
      std::optional<Candidate> next = Bound(std::move(changed));
      if (!next || next->fits_host < current.fits_host) continue;
      Keep(*next);
      if (next->fits_host > current.fits_host || Accept(*next, current, warmth * left * left)) {
        current = *std::move(next);
      }
    }
  }

  bool Accept(const Candidate& next, const Candidate& current, double warmth) {
    const auto cost = [](const Candidate& c) {
      return static_cast<double>(c.score.count()) +
             1e-3 * static_cast<double>(c.bound.chain.count());
    };
    const double worse = cost(next) / cost(current) - 1;
    if (worse <= 0) return true;
    return random_.NextDouble() < std::exp(-worse / std::max(warmth, 1e-9));
  }

  // False when the plan does not run.
  bool Simulate(const Candidate& candidate) {
    SearchReport& report = result_.report;
    done_.insert(std::get<std::string>(candidate.rank));
    const absl::StatusOr<RehearsedPlan> estimate =
        RehearsePlan(model_, candidate.plan, costs_.model());
    if (!estimate.ok()) return false;
    ++report.simulations;
    report.commands += estimate->commands;
    ScoredPlan scored{candidate.plan, candidate.bound, estimate->step,
                      builder_.Score(candidate.plan, estimate->step), candidate.fits_host};
    const bool better = !result_.found || Better(scored, result_.best);
    if (better) {
      result_.found = true;
      result_.best = scored;
    }
    report.simulated.push_back(std::move(scored));
    return better;
  }

  // True when nothing that is left can win.
  bool SimulateKept() {
    while (!kept_.empty()) {
      const Candidate candidate = std::move(kept_.begin()->second);
      kept_.erase(kept_.begin());
      if (!CanWin(candidate)) return true;
      if (result_.found && !CommandsLeft()) return false;
      Simulate(candidate);
    }
    return !dropped_;
  }

  // Changes of the best plan, judged by simulation.
  void Refine(const MoveRules& rules) {
    options_.commands += options_.commands / 4;
    options_.tasks += options_.tasks / 16;
    for (int fruitless = 0; fruitless < kFruitlessMoves && WorkLeft() && CommandsLeft();) {
      ++fruitless;
      Plan changed = result_.best.plan;
      if (!RandomMove(rules, random_, &changed)) continue;
      if (random_.Below(3) == 0) RandomMove(rules, random_, &changed);
      const std::optional<Candidate> next = Bound(std::move(changed));
      if (!next || !CanWin(*next) || done_.contains(std::get<std::string>(next->rank))) continue;
      if (Simulate(*next)) fruitless = 0;
    }
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
  const ModelSpec& model_;
  const MoveRules rules_;
  const Plan shape_;
  TaskCosts costs_;
  Bounds bounds_;
  SearchOptions options_;
  CounterRandom random_;
  int64_t tasks_ = 0;
  size_t most_kept_ = kMostKept;
  bool dropped_ = false;  // plans that were not worth keeping
  std::map<Rank, Candidate> kept_;
  absl::flat_hash_set<std::string> done_;  // keys of plans that were simulated
  SearchResult result_;
};

}  // namespace

SearchResult SearchPlans(const PlanBuilder& builder, const MoveRules& rules,
                         const std::vector<LayerRange>& partition, const CostFactory& costs,
                         const SearchOptions& options) {
  return Search(builder, rules, costs, options).Run(partition);
}

}  // namespace harmony
