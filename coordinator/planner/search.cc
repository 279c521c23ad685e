#include "coordinator/planner/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "coordinator/planner/candidate.h"
#include "coordinator/planner/enumeration.h"
#include "coordinator/planner/neighbours.h"
#include "coordinator/planner/residency.h"
#include "coordinator/planner/seeds.h"
#include "coordinator/planner/step_estimate.h"

namespace harmony {
namespace {

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
constexpr int64_t kLeastWander = 100;     // simulations, or there is none
constexpr int64_t kBoundsOfWander = 100;  // tasks for each command
// All plans are looked at when there are no more than this.
constexpr int64_t kFewPlans = 20'000;
// Setting up a plan takes about as long as bounding so many of its tasks, for each group.
constexpr int64_t kTasksPerGroup = 60;
// A rehearsal at less than so many times the best may be that of a better plan: it is evaluated,
// where its commands are no more than such a part of all that may be simulated.
constexpr double kNearly = 1.03;
constexpr int64_t kFewCommands = 100;
// Of a task of a sample of microbatches: there are three more in all.
constexpr int64_t kWorkOfSample = 3;
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
        estimator_(model_, costs_),
        options_(options),
        random_(1, 7) {
    const int64_t layers = model_.num_layers();
    if (options_.commands == 0) options_.commands = 600'000 + 600 * layers;
    if (options_.tasks == 0) options_.tasks = 36'000'000 + 50'000 * layers;
    if (!rules.groups) options_.tasks /= 10;  // there is little to change
  }

  SearchResult Run(const std::vector<LayerRange>& partition) {
    SearchReport& report = result_.report;
    report.lower_bound = bounds_.OfAnyPlan(shape_, rules_.spans);
    const bool all =
        rules_.groups && CountPlans(model_.num_layers(), shape_, rules_, kFewPlans) <= kFewPlans;
    estimates_ = shape_.mode == ParallelMode::kPipeline && shape_.replicas == 1;
    if (all) {
      most_kept_ = kFewPlans;
      EnumeratePlans(model_.num_layers(), shape_, rules_, [this](Plan plan) { Consider(plan); });
    } else {
      for (Plan& seed : SeedPlans(builder_, costs_, rules_, partition)) {
        // From few groups to many.
        const bool many =
            seed.backward_groups.size() > kManyRounds * static_cast<size_t>(DeviceChoices(shape_));
        if (!kept_.empty() && tasks_ > options_.tasks / 8) break;
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
    std::sort(report.simulated.begin(), report.simulated.end(), Better);
    if (report.simulated.size() > kMostReported) report.simulated.resize(kMostReported);
    return std::move(result_);
  }

 private:
  using Promise = Candidate::Promise;

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

  void Normalize(Plan* plan) const {
    if (rules_.alike_devices) RenameDevices(plan);
    if (plan->forward_groups.empty()) plan->forward_span = 1;
    if (plan->forward_span == 1) return;
    for (LayerGroup& group : plan->backward_groups) group.keep_activations = false;
  }

  std::optional<Candidate> Bound(Plan plan) {
    Normalize(&plan);
    Candidate candidate;
    candidate.plan = std::move(plan);
    ++result_.report.bounded;
    StepVisits step;
    const bool fits = builder_.Complete(&candidate.plan, &step);
    const auto visits = static_cast<int64_t>(step.visits.size());
    tasks_ += visits * (kTasksPerGroup + (visits > kManyVisits ? visits : 0));
    if (!fits) {
      ++result_.report.not_fitting;
      return std::nullopt;
    }
    const int sample = SampleOfMicrobatches(candidate.plan);
    const bool all = sample == candidate.plan.num_microbatches;
    tasks_ += visits * (all ? candidate.plan.share_microbatches() : kWorkOfSample * sample);
    candidate.bound = bounds_.OfPlan(candidate.plan, step);
    const PlanBound& bound = candidate.bound;
    candidate.score = builder_.Score(candidate.plan, bound.step);
    candidate.estimate = candidate.score;
    if (estimates_) {
      candidate.estimate = builder_.Score(
          candidate.plan,
          std::max(bound.step, OfAllMicrobatches(candidate.plan, [&](int microbatches) {
                     return estimator_.Estimate(candidate.plan, step, microbatches);
                   })));
    }
    candidate.fits_host = builder_.FitsHost(candidate.plan);
    candidate.rank = {!candidate.fits_host, candidate.score, bound.chain, bound.copies,
                      KeyOf(candidate.plan)};
    return candidate;
  }

  void Keep(const Candidate& candidate) {
    if (estimates_) {
      KeepBest(candidate.By(candidate.estimate), candidate, kMostKept, &promising_);
    }
    if (!KeepBest(candidate.rank, candidate, most_kept_, &kept_)) dropped_ = true;
  }

  void Consider(Plan plan) {
    const std::optional<Candidate> candidate = Bound(std::move(plan));
    if (!candidate) return;
    Keep(*candidate);
    if (!estimates_) return;
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
  // the ground, some go far. Half of them go by bounds, half by estimates, where there are any:
  // what an estimate has wrong about a kind of plans misleads a whole walk.
  void Anneal() {
    const std::vector<Candidate> seeds = Best(kept_, kWalks / 2);
    std::vector<Candidate> promising = Best(promising_, kWalks / 2);
    StartElsewhere(&promising);
    if (seeds.empty()) return;
    const int64_t begin = tasks_,
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

  void Walk(Candidate current, int64_t from, int64_t share, double warmth, bool by_estimate) {
    MoveRules rules = rules_;
    if (by_estimate && rules.alike_devices) rules.most_devices = UsedBy(current.plan).size();
    const auto cost = [&](const Candidate& c) {
      return static_cast<double>((by_estimate ? c.estimate : c.score).count()) +
             1e-3 * static_cast<double>(c.bound.chain.count());
    };
    while (tasks_ < from + share) {
      const double left = 1 - static_cast<double>(tasks_ - from) / static_cast<double>(share);
      Plan changed = current.plan;
      tasks_ += 20;  // so that it ends when nothing can be changed
      if (!RandomMove(rules, random_, &changed)) continue;
      std::optional<Candidate> next = Bound(std::move(changed));
      if (!next || next->fits_host < current.fits_host) continue;
      Keep(*next);
      if (next->fits_host > current.fits_host ||
          Accept(cost(*next) / cost(current) - 1, warmth * left * left)) {
        current = *std::move(next);
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
        RehearsePlan(model_, candidate.plan, costs_.model());
    if (!rehearsed.ok()) return false;
    ++report.simulations;
    report.commands += rehearsed->commands;
    rehearsed_ += rehearsed->commands;
    Nanos step = rehearsed->step;
    if (MayBeBest(builder_.Score(candidate.plan, step), rehearsed->commands)) {
      const absl::StatusOr<Estimate> evaluated =
          EvaluatePlan(model_, candidate.plan, costs_.model());
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
    const int64_t from = report.commands;
    options_.commands = std::max(options_.commands, from + share);
    options_.tasks = std::max(options_.tasks, tasks_ + share * kBoundsOfWander);
    while (report.commands < from + share && WorkLeft()) {
      const double left =
          1 - static_cast<double>(report.commands - from) / static_cast<double>(share);
      Plan changed = current.plan;
      tasks_ += 20;  // so that it ends when nothing can be changed
      bool moved = RandomMove(rules, random_, &changed);
      while (random_.Below(2) == 0) moved |= RandomMove(rules, random_, &changed);
      if (!moved) continue;
      Normalize(&changed);
      const auto above = [&](Nanos score) {
        return static_cast<double>(score.count()) / static_cast<double>(current.score.count()) - 1;
      };
      const double most = -std::log(1 - random_.NextDouble()) * warmth * left * left;
      std::string key = KeyOf(changed);
      // Most changes have been tried before.
      const auto known = wandered_.find(key);
      if (done_.contains(key) || (known != wandered_.end() && above(known->second) > most))
        continue;
      const std::optional<Candidate> next = Bound(std::move(changed));
      wandered_[std::move(key)] = next ? next->score : Nanos(std::numeric_limits<int64_t>::max());
      if (!next || next->fits_host < current.fits_host || above(next->score) > most) continue;
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
    if (neighbours * (tasks_ / report.bounded) > options_.tasks / kLeastExpansions) return;
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
    const int64_t tasks = tasks_ + options_.tasks / 4,
                  commands = report.commands + options_.commands / 2;
    absl::flat_hash_set<std::string> seen;
    for (int fruitless = 0;
         fruitless < kFruitlessExpansions && tasks_ < tasks && report.commands < commands;
         ++fruitless) {
      const Frontier::Shared next = frontier.Next();
      if (next == nullptr) break;
      if (CanWin(*next) && !done_.contains(next->key()) && Simulate(*next)) fruitless = 0;
      ForEachNeighbour(rules_, next->plan, [&](Plan plan) {
        Normalize(&plan);
        tasks_ += 20;
        if (!seen.insert(KeyOf(plan)).second) return;
        if (const std::optional<Candidate> neighbour = Bound(std::move(plan))) {
          frontier.Add(std::make_shared<const Candidate>(*neighbour));
        }
      });
    }
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
  TaskCosts costs_;
  Bounds bounds_;
  StepEstimator estimator_;
  SearchOptions options_;
  CounterRandom random_;
  int64_t tasks_ = 0, rehearsed_ = 0;
  size_t most_kept_ = kMostKept;
  bool dropped_ = false;  // plans that were not worth keeping
  std::map<Candidate::Rank, Candidate> kept_;
  bool estimates_ = false;
  std::map<Promise, Candidate> promising_;                     // by their estimates
  std::map<Kind, std::map<Promise, Candidate>> best_of_kind_;  // of the seeds
  std::map<Promise, Candidate> simulated_;                     // the best
  absl::flat_hash_map<std::string, Nanos>
      wandered_;                           // scores of bounds by keys; none fits: the most
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
