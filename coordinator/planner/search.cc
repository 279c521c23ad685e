#include "coordinator/planner/search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "coordinator/planner/appraiser.h"
#include "coordinator/planner/candidate.h"
#include "coordinator/planner/enumeration.h"
#include "coordinator/planner/neighbours.h"
#include "coordinator/planner/residency.h"
#include "coordinator/planner/seeds.h"

namespace harmony {
namespace {

// The search may take such a part of the least time of the run, as far as that is more than what
// any run is worth; but only so many tasks, which a model of 1000 layers is worth anyway.
constexpr double kPartOfRun = 0.01;
constexpr double kSecondsOfTask = 3e-8;  // about
constexpr double kMostTasks = 86e6;
constexpr size_t kMostKept = 64;  // plans that wait for a simulation
constexpr size_t kMostReported = 16;
constexpr size_t kWalks = 8;
constexpr int kFruitlessMoves = 400;
constexpr size_t kWanders = 16;
constexpr int64_t kPartOfWander = 8;  // of what may be simulated anyway, each
// Plans whose neighbours are looked at: as many as that without finding a better one; where all the
// effort is not enough for so many, none.
constexpr int kFruitlessExpansions = 300;
constexpr int64_t kLeastExpansions = 20;
constexpr int64_t kLeastWander = 100;  // simulations, or there is none
constexpr int kMostKnown = 5000;  // changes in a row that have all been tried: there is no other
// Tasks that take as long to bound as a command to rehearse.
constexpr double kTasksPerCommand = 30;
// All plans are looked at when there are no more than this.
constexpr int64_t kFewPlans = 20'000;
// A change of a plan that is not bounded takes about as long as bounding so many tasks.
constexpr int64_t kTasksPerMove = 20;
// A rehearsal at less than so many times the best may be that of a better plan: it is evaluated,
// where its commands are no more than such a part of all that may be simulated.
constexpr double kNearly = 1.03;
constexpr int64_t kFewCommands = 100;
constexpr size_t kManyRounds = 16;  // around the devices; more only where fewer do not fit

class Search {
 public:
  Search(const PlanBuilder& builder, const MoveRules& rules, const CostFactory& costs,
         const SearchOptions& options)
      : builder_(builder),
        model_(builder.model()),
        rules_(rules),
        shape_(builder.Blank()),
        appraiser_(builder, rules_, costs),
        options_(options),
        random_(1, 7) {
    result_.report.lower_bound = appraiser_.BoundOfAnyPlan();
    LimitWork();
  }

  SearchResult Run(const std::vector<LayerRange>& partition) {
    SearchReport& report = result_.report;
    const bool all =
        rules_.groups && CountPlans(model_.num_layers(), shape_, rules_, kFewPlans) <= kFewPlans;
    if (all) {
      most_kept_ = kFewPlans;
      EnumeratePlans(model_.num_layers(), shape_, rules_, [this](Plan plan) { Consider(plan); });
    } else {
      for (Plan& seed : SeedPlans(builder_, appraiser_.costs(), rules_, partition)) {
        // From few groups to many.
        const bool many =
            seed.backward_groups.size() > kManyRounds * static_cast<size_t>(DeviceChoices(shape_));
        if (!kept_.empty() && Tasks() > options_.tasks / 8) break;
        if (!kept_.empty() && many) continue;
        Consider(std::move(seed));
      }
      TrySpans();
      KeepWhatFits();
      Anneal();
    }
    SimulatePromising();
    const bool proved = SimulateKept() && all;
    report.exhaustive = proved && SampleOfMicrobatches(shape_) == shape_.num_microbatches;
    if (!proved && result_.found) {
      Wander();
      Expand();
      Refine(rules_);
      MoveRules together = rules_;
      together.together = true;
      if (rules_.groups) Refine(together);
    }
    PreferSmallArena();
    report.bounded = appraiser_.counts().plans;
    report.not_fitting = appraiser_.counts().not_fitting;
    std::sort(report.simulated.begin(), report.simulated.end(), Better);
    if (report.simulated.size() > kMostReported) report.simulated.resize(kMostReported);
    return std::move(result_);
  }

 private:
  using Promise = Candidate::Promise;
  using Judgement = Appraiser::Judgement;

  // As much as such a model needs, and more for a long run, which is worth it.
  void LimitWork() {
    const int64_t layers = model_.num_layers();
    const int64_t tasks = 36'000'000 + 50'000 * layers, commands = 600'000 + 600 * layers;
    const double worth = static_cast<double>(builder_.job().max_steps) *
                         result_.report.lower_bound.seconds() * kPartOfRun / kSecondsOfTask;
    const double more = std::max(std::min(worth, kMostTasks) / static_cast<double>(tasks), 1.0);
    const auto times_more = [more](int64_t work) {
      return static_cast<int64_t>(static_cast<double>(work) * more);
    };
    if (options_.tasks == 0) options_.tasks = times_more(tasks);
    if (options_.commands == 0) options_.commands = times_more(commands);
    if (!rules_.groups) options_.tasks /= 10;  // there is little to change
  }

  static bool Better(const ScoredPlan& a, const ScoredPlan& b) {
    return std::tuple(!a.fits_host, a.score, a.bound.copies) <
           std::tuple(!b.fits_host, b.score, b.bound.copies);
  }

  int64_t Tasks() const { return appraiser_.counts().tasks + tries_; }
  bool WorkLeft() const { return Tasks() < options_.tasks; }
  bool CommandsLeft() const { return result_.report.commands < options_.commands; }
  bool CanWin(const Candidate& candidate) const {
    if (!result_.found) return true;
    if (candidate.fits_host != result_.best.fits_host) return candidate.fits_host;
    return candidate.score < result_.best.score;
  }

  // Of a normalized plan, which is kept if it is new: walks come by the same plans again and again.
  // The work is counted each time, so that the length of a walk does not depend on where others
  // have been.
  Judgement Judge(const Plan& plan) {
    const std::string key = KeyOf(plan);
    if (const Judgement* known = appraiser_.Remembered(key)) {
      tries_ += known->work;
      return *known;
    }
    if (const std::optional<Candidate> candidate = appraiser_.BoundAndRemember(plan, key)) {
      Keep(*candidate);
    }
    return *appraiser_.Remembered(key);
  }

  void Keep(const Candidate& candidate) {
    if (appraiser_.estimates()) {
      KeepBest(candidate.By(candidate.estimate), candidate, kMostKept, &promising_);
    }
    if (!KeepBest(candidate.rank, candidate, most_kept_, &kept_)) dropped_ = true;
  }

  void Consider(Plan plan) {
    const std::optional<Candidate> candidate = appraiser_.Bound(std::move(plan));
    if (!candidate) return;
    Keep(*candidate);
    if (!appraiser_.estimates()) return;
    KeepBest(candidate->By(candidate->estimate), *candidate, 1,
             &best_of_kind_[KindOf(candidate->plan)]);
  }

  // Devices, and about how often the groups go round them.
  using Kind = std::pair<std::set<int>, int>;
  static Kind KindOf(const Plan& plan) {
    const std::set<int> devices = UsedBy(plan);
    return {devices, std::ilogb(static_cast<double>(plan.backward_groups.size()) /
                                static_cast<double>(devices.size()))};
  }

  template <typename Candidates>
  static std::vector<Candidate> Best(const Candidates& candidates, size_t most) {
    std::vector<Candidate> best;
    for (const auto& [rank, candidate] : candidates) {
      if (best.size() < most) best.push_back(candidate);
    }
    return best;
  }

  std::vector<Plan> BestKept() const {
    std::vector<Plan> plans;
    for (const Candidate& candidate : Best(kept_, kWalks)) plans.push_back(candidate.plan);
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
      const std::optional<Candidate> candidate = appraiser_.Bound(with);
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
  // the ground, some go far. Half of them go by bounds, half by estimates, where there are any:
  // what an estimate has wrong about a kind of plans misleads a whole walk.
  void Anneal() {
    const std::vector<Candidate> seeds = Best(kept_, kWalks / 2);
    std::vector<Candidate> promising = Best(promising_, kWalks / 2);
    StartElsewhere(&promising);
    if (seeds.empty()) return;
    const int64_t begin = Tasks(),
                  share = (options_.tasks - begin) * 3 / 4 / static_cast<int64_t>(kWalks);
    for (size_t walk = 0; walk < kWalks; ++walk) {
      const bool by_estimate = walk >= kWalks / 2 && !promising.empty();
      const std::vector<Candidate>& starts = by_estimate ? promising : seeds;
      Walk(starts[walk % starts.size()], begin + share * static_cast<int64_t>(walk), share,
           walk % 2 == 0 ? 0.02 : 0.2, by_estimate);
    }
  }

  // The walks that go far begin with the best of other kinds: with fewer devices, or with more or
  // fewer groups, which a walk hardly finds out by itself.
  void StartElsewhere(std::vector<Candidate>* starts) const {
    if (starts->empty()) return;
    std::map<Promise, Candidate> others;
    for (const auto& [kind, best] : best_of_kind_) {
      if (kind != KindOf(starts->front().plan)) others.insert(*best.begin());
    }
    size_t at = 1;
    for (const Candidate& other : Best(others, starts->size() / 2)) {
      (*starts)[at] = other;
      at += 2;
    }
  }

  void Walk(const Candidate& start, int64_t from, int64_t share, double warmth, bool by_estimate) {
    MoveRules rules = rules_;
    if (by_estimate && rules.alike_devices) rules.most_devices = UsedBy(start.plan).size();
    const auto cost = [&](const Judgement& plan) {
      return static_cast<double>((by_estimate ? plan.estimate : plan.score).count()) +
             1e-3 * static_cast<double>(plan.chain.count());
    };
    Plan plan = start.plan;
    Judgement current = Judge(plan);
    while (Tasks() < from + share) {
      const double left = 1 - static_cast<double>(Tasks() - from) / static_cast<double>(share);
      Plan changed = plan;
      tries_ += kTasksPerMove;  // so that it ends when nothing can be changed
      if (!RandomMove(rules, random_, &changed)) continue;
      appraiser_.Normalize(&changed);
      const Judgement next = Judge(changed);
      if (!next.fits || next.fits_host < current.fits_host) continue;
      if (next.fits_host > current.fits_host ||
          Accept(cost(next) / cost(current) - 1, warmth * left * left)) {
        current = next;
        plan = std::move(changed);
      }
    }
  }

  bool Accept(double worse, double warmth) {
    if (worse <= 0) return true;
    return random_.NextDouble() < std::exp(-worse / std::max(warmth, 1e-9));
  }

  // False when the plan does not run.
  bool Simulate(const Candidate& candidate) {
    SearchReport& report = result_.report;
    done_.insert(candidate.key());
    const absl::StatusOr<RehearsedPlan> rehearsed =
        RehearsePlan(model_, candidate.plan, appraiser_.costs().model());
    if (!rehearsed.ok()) return false;
    ++report.simulations;
    report.commands += rehearsed->commands;
    rehearsed_ += rehearsed->commands;
    Nanos step = rehearsed->step;
    if (MayBeBest(builder_.Score(candidate.plan, step), rehearsed->commands)) {
      const absl::StatusOr<Estimate> evaluated =
          EvaluatePlan(model_, candidate.plan, appraiser_.costs().model());
      if (!evaluated.ok()) return false;
      report.commands += evaluated->commands;
      step = evaluated->step;
    }
    ScoredPlan scored{candidate.plan, candidate.bound, step, builder_.Score(candidate.plan, step),
                      candidate.fits_host};
    const bool better = !result_.found || Better(scored, result_.best);
    if (better) {
      result_.found = true;
      result_.best = scored;
    }
    KeepBest(candidate.By(scored.score), candidate, kMostKept, &simulated_);
    report.simulated.push_back(std::move(scored));
    return better;
  }

  // By a rehearsal, which is only nearly right, of so many commands.
  bool MayBeBest(Nanos rehearsed, int64_t commands) const {
    if (commands > options_.commands / kFewCommands) return false;
    return !result_.found || static_cast<double>(rehearsed.count()) <
                                 static_cast<double>(result_.best.score.count()) * kNearly;
  }

  // With half of what may be simulated.
  void SimulatePromising() {
    const int64_t most = options_.commands / 2;
    for (const auto& [promise, candidate] : promising_) {
      if (result_.found && result_.report.commands >= most) return;
      if (CanWin(candidate)) Simulate(candidate);
    }
  }

  // True when nothing that is left can win.
  bool SimulateKept() {
    while (!kept_.empty()) {
      const Candidate candidate = std::move(kept_.begin()->second);
      kept_.erase(kept_.begin());
      if (!CanWin(candidate)) return true;
      if (result_.found && !CommandsLeft()) return false;
      if (!done_.contains(candidate.key())) Simulate(candidate);
    }
    return !dropped_;
  }

  // Random changes judged by simulation, worse ones accepted less and less: for plans that are
  // simulated in a moment, about which the bound says too little.
  void Wander() {
    SearchReport& report = result_.report;
    const int64_t share = options_.commands / kPartOfWander;
    if (rehearsed_ > report.simulations * (share / kLeastWander)) return;
    const std::vector<ScoredPlan> starts = report.simulated;
    for (size_t walk = 0; walk < kWanders; ++walk) {
      const bool from_best = walk % 2 == 0;
      MoveRules rules = rules_;
      rules.together = !from_best;
      Wander(rules, from_best ? result_.best : starts[random_.Below(starts.size())], share,
             from_best ? 0.05 : 0.3);
    }
  }

  void Wander(const MoveRules& rules, ScoredPlan current, int64_t share, double warmth) {
    const SearchReport& report = result_.report;
    const int64_t from = report.commands, tasks_from = Tasks();
    options_.commands = std::max(options_.commands, from + share);
    for (int known_ones = 0; known_ones < kMostKnown; ++known_ones) {
      const double spent = static_cast<double>(report.commands - from) +
                           static_cast<double>(Tasks() - tasks_from) / kTasksPerCommand;
      const double left = 1 - spent / static_cast<double>(share);
      if (left <= 0) break;
      Plan changed = current.plan;
      tries_ += kTasksPerMove;
      bool moved = RandomMove(rules, random_, &changed);
      while (random_.Below(2) == 0) moved |= RandomMove(rules, random_, &changed);
      if (!moved) continue;
      appraiser_.Normalize(&changed);
      const auto above = [&](Nanos score) {
        return static_cast<double>(score.count()) / static_cast<double>(current.score.count()) - 1;
      };
      const double most = -std::log(1 - random_.NextDouble()) * warmth * left * left;
      const std::string key = KeyOf(changed);
      const auto may_follow = [&](const Judgement& plan) {
        return plan.fits && plan.fits_host >= current.fits_host && above(plan.score) <= most;
      };
      // Most changes have been tried before.
      const Judgement* known = appraiser_.Remembered(key);
      if (done_.contains(key) || (known != nullptr && !may_follow(*known))) continue;
      const std::optional<Candidate> next = appraiser_.BoundAndRemember(changed, key);
      known_ones = 0;
      if (!next || !may_follow(*appraiser_.Remembered(key))) continue;
      const size_t simulated = report.simulated.size();
      Simulate(*next);
      if (report.simulated.size() == simulated) continue;
      const ScoredPlan& scored = report.simulated.back();
      if (scored.fits_host >= current.fits_host && above(scored.score) <= most) current = scored;
    }
  }

  // Every small change of the plans that promise most, by their bounds, by their estimates and by
  // their simulated times in turn, again and again; what may win is simulated when its turn comes.
  void Expand() {
    const SearchReport& report = result_.report;
    const int64_t neighbours =
        static_cast<int64_t>(model_.num_layers()) * DeviceChoices(shape_) * 8;
    const Appraiser::Counts& counts = appraiser_.counts();
    if (neighbours * (counts.tasks / counts.plans) > options_.tasks / kLeastExpansions) return;
    Frontier frontier;
    const auto add = [&frontier](const auto& plans) {
      for (const auto& [order, candidate] : plans) {
        frontier.Add(std::make_shared<const Candidate>(candidate));
      }
    };
    add(kept_);
    add(promising_);
    add(simulated_);
    for (const auto& [promise, candidate] : simulated_) {
      frontier.AddSimulated(std::make_shared<const Candidate>(candidate), std::get<Nanos>(promise));
    }
    const int64_t tasks = Tasks() + options_.tasks / 4,
                  commands = report.commands + options_.commands / 2;
    absl::flat_hash_set<std::string> seen;
    for (int fruitless = 0;
         fruitless < kFruitlessExpansions && Tasks() < tasks && report.commands < commands;
         ++fruitless) {
      const Frontier::Shared next = frontier.Next();
      if (next == nullptr) break;
      if (CanWin(*next) && !done_.contains(next->key()) && Simulate(*next)) fruitless = 0;
      ForEachNeighbour(rules_, next->plan, [&](Plan plan) {
        appraiser_.Normalize(&plan);
        tries_ += kTasksPerMove;
        if (!seen.insert(KeyOf(plan)).second) return;
        if (const std::optional<Candidate> neighbour = appraiser_.Bound(std::move(plan))) {
          frontier.Add(std::make_shared<const Candidate>(*neighbour));
        }
      });
    }
  }

  // Changes of the best plan, judged by simulation.
  void Refine(const MoveRules& rules) {
    options_.commands += options_.commands / 4;
    options_.tasks = std::max(options_.tasks, Tasks()) + options_.tasks / 16;
    for (int fruitless = 0; fruitless < kFruitlessMoves && WorkLeft() && CommandsLeft();) {
      ++fruitless;
      Plan changed = result_.best.plan;
      if (!RandomMove(rules, random_, &changed)) continue;
      if (random_.Below(3) == 0) RandomMove(rules, random_, &changed);
      const std::optional<Candidate> next = appraiser_.Bound(std::move(changed));
      if (!next || !CanWin(*next) || done_.contains(next->key())) continue;
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
  Appraiser appraiser_;
  SearchOptions options_;
  CounterRandom random_;
  int64_t tries_ = 0;  // tasks that moves took so long as
  int64_t rehearsed_ = 0;
  size_t most_kept_ = kMostKept;
  bool dropped_ = false;  // plans that were not worth keeping
  std::map<Candidate::Rank, Candidate> kept_;
  std::map<Promise, Candidate> promising_;                     // by their estimates
  std::map<Kind, std::map<Promise, Candidate>> best_of_kind_;  // of the seeds
  std::map<Promise, Candidate> simulated_;                     // the best
  absl::flat_hash_set<std::string> done_;                      // keys of plans that were simulated
  SearchResult result_;
};

}  // namespace

SearchResult SearchPlans(const PlanBuilder& builder, const MoveRules& rules,
                         const std::vector<LayerRange>& partition, const CostFactory& costs,
                         const SearchOptions& options) {
  return Search(builder, rules, costs, options).Run(partition);
}

}  // namespace harmony
