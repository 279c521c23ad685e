#include "coordinator/planner/planning.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/planner/fit/fit_advice.h"
#include "coordinator/planner/report/basis.h"
#include "coordinator/planner/search/grouping.h"
#include "coordinator/planner/search/microbatch.h"
#include "coordinator/planner/search/seeds.h"
#include "coordinator/planner/timing/task_costs.h"

namespace harmony::planner {
namespace {

// What the job leaves open (mode), the default first; with so many replicas where it gives none (0:
// as many as divide a step).
std::vector<Division> DivisionsOf(const job::JobSpec& job, const plan::MachineSpec& machine,
                                  int replicas) {
  const int given = job.virtual_replicas > 0 ? job.virtual_replicas : replicas;
  if (job.mode == "harmony-dp") return {{DeviceSets::kAll, given}};
  std::vector<Division> divisions = {{DeviceSets::kSingle, given}};
  if (job.mode != "auto" || given == 1 || machine.devices.size() == 1) return divisions;
  divisions.push_back({DeviceSets::kAll, given});
  // Groups that are given take turns, and on sets of devices not all stashes can stay there.
  if (job.layer_groups.empty() && job.stash != job::StashPlacement::kDevice) {
    // It goes on with what the others have found; the three take as long as two would.
    divisions.push_back({DeviceSets::kAny, given});
    for (Division& division : divisions) division.share = 0.67;
  }
  return divisions;
}

const char* ModeName(DeviceSets sets) {
  return sets == DeviceSets::kSingle ? "harmony-pp"
         : sets == DeviceSets::kAll  ? "harmony-dp"
                                     : "auto";
}

// The search in one division.
struct Contender {
  Division division;
  int64_t microbatch = 0;
  SearchResult found;
  Nanos at_least;  // of any plan, where that is too long to be searched
};

class Planning {
 public:
  Planning(const model::ModelSpec& model, const job::JobSpec& job, const plan::MachineSpec& machine,
           const dispatch::CostFactory& costs, const PlannerOptions& options)
      : model_(model), job_(job), machine_(machine), costs_(costs), options_(options) {}

  std::vector<int64_t> Sizes() const {
    if (job_.micro_batch_size == 0 && options_.microbatch_size > 0) {
      return {options_.microbatch_size};
    }
    // The size fixes the result: it must not depend on the mode that wins, nor on whether there are
    // links between devices.
    const Division division = DivisionsOf(job_, machine_, options_.replicas).front();
    const bool known = absl::c_all_of(machine_.devices, plan::HasSpeeds);
    return MicrobatchSizes(model_, job_, machine_, division, costs_,
                           known || (options_.costs && !options_.rough), options_.run_both);
  }

  absl::StatusOr<PlanResult> Run(const std::vector<int64_t>& sizes) {
    if (!job_.layer_groups.empty()) {
      HARMONY_ASSIGN_OR_RETURN(partition_, FixedPartition(model_, job_.layer_groups));
    }
    const std::vector<Division> divisions = DivisionsOf(job_, machine_, options_.replicas);
    std::vector<Contender> all = SearchAll(divisions, sizes);
    const bool automatic = divisions.front().replicas == 0;
    if (automatic && Best(all).found.found && !FitsHost(Best(all))) TryFewerReplicas(sizes, &all);
    const Contender* const best = &Best(all);
    if (!best->found.found) {
      return DeviceTooSmall(model_, job_, machine_, best->microbatch, best->division, partition_,
                            options_.model_of_length);
    }
    PlanResult result;
    result.fewer_replicas_for_host = automatic && best->division.replicas > 0;
    result.plan = best->found.best.plan;
    result.report = best->found.report;
    if (!FitsHost(*best)) {
      return HostTooSmall(model_, job_, machine_, result.plan, options_.model_of_length);
    }
    const PlanBuilder builder = BuilderOf(*best);
    HARMONY_RETURN_IF_ERROR(Evaluate(builder, RulesOf(builder), costs_, options_, &result));
    for (const Contender& other : all) {
      const bool same = absl::string_view(ModeName(other.division.sets)) == ModeOf(result.plan) ||
                        other.division.sets == DeviceSets::kAny;
      if (other.division.replicas != best->division.replicas) continue;
      if (options_.explain && !same) Add(other, *best, &result.alternatives);
    }
    if (options_.explain) AddOneReplica(*best, sizes, &result.alternatives);
    if (options_.explain) result.with_one_more = StepWithOneMore(result.plan);
    return result;
  }

 private:
  PlanBuilder BuilderOf(const Contender& candidate) const {
    return PlanBuilder(model_, job_, machine_, candidate.microbatch, candidate.division);
  }

  // What is found where no devices share a link: there few devices stand for all, so that far more
  // plans can be looked at (PlanBuilder::Complete).
  std::vector<plan::Plan> FoundOnOwnLinks(const Contender& candidate) const {
    plan::MachineSpec machine = machine_;
    bool shared = false;
    for (plan::DeviceSpec& device : machine.devices) {
      shared |= !std::exchange(device.root, "").empty();
    }
    const PlanBuilder builder(model_, job_, machine, candidate.microbatch, candidate.division);
    if (candidate.division.sets != DeviceSets::kAll || !shared || !builder.alike_devices()) {
      return {};
    }
    SearchOptions search = options_.search;
    search.share *= candidate.division.share;
    const SearchResult found = SearchPlans(builder, RulesOf(builder), partition_, costs_, search);
    return BestPlans(found);
  }

  std::vector<Contender> SearchAll(const std::vector<Division>& divisions,
                                   const std::vector<int64_t>& sizes) const {
    std::vector<Contender> all;
    std::vector<plan::Plan> starts;
    Nanos beat;
    bool by_two_is_faster = false;  // where all devices share all groups
    for (Division division : divisions) {
      if (division.sets == DeviceSets::kAny && by_two_is_faster) division.add_up = 2;
      Contender next = Search(division, sizes, beat, starts);
      if (division.sets == DeviceSets::kAll && next.found.found &&
          UpdatesTakeLong(next.found.best)) {
        division.add_up = 2;
        Contender by_two = Search(division, sizes, beat, starts);
        by_two_is_faster = Better(by_two, next);
        if (by_two_is_faster) next = std::move(by_two);
      }
      if (FitsHost(next)) {
        const bool better = beat == Nanos() || next.found.best.score < beat;
        std::vector<plan::Plan> found = BestPlans(next.found);
        starts.insert(better ? starts.begin() : starts.end(), found.begin(), found.end());
        beat = beat == Nanos() ? next.found.best.score : std::min(beat, next.found.best.score);
      }
      all.push_back(std::move(next));
    }
    return all;
  }

  // The host holds the parts that gradients leave in. Where it has no room for those of the
  // replicas that divide a step: the most replicas for whose parts it has, of the microbatches of
  // the plan that needs the least of it; with one replica smaller ones, too. Where it has hardly
  // room, half as many may be faster.
  void TryFewerReplicas(const std::vector<int64_t>& sizes, std::vector<Contender>* all) const {
    const int64_t size = Best(*all).microbatch;
    int replicas = job_.AutoReplicas(size);
    bool fits = false;
    do {
      fits = FitsHost(Best(*all));
      replicas = std::max(replicas / 2, 1);
      std::vector<Contender> found = SearchAll(DivisionsOf(job_, machine_, replicas),
                                               replicas > 1 ? std::vector{size} : sizes);
      absl::c_move(found, std::back_inserter(*all));
    } while (replicas > 1 && !fits);
  }
  static const Contender& Best(const std::vector<Contender>& all) {
    return *absl::c_min_element(all, Better);
  }

  // The host reads the gradients of each device: with many devices for few microbatches that can be
  // most of a step, and groups stay small so that it begins early. Where devices add them up two by
  // two, fewer are read, but devices wait for each other; that has been of no use where updates
  // took less of a step than this.
  bool UpdatesTakeLong(const ScoredPlan& found) const {
    constexpr double kMuch = 1. / 3;
    const plan::LayerGroup all{{}, AllDevices(found.plan)};
    const int devices = all.devices.size();
    if (plan::FewestParts(found.plan, all) == devices) return false;  // they may not
    const TaskCosts tasks(model_, found.plan, costs_(found.plan));
    Nanos updates;
    for (int block = 0; block < static_cast<int>(model_.blocks.size()); ++block) {
      updates += tasks.Update(block, devices);
      if (found.plan.clip) updates += tasks.Norm(block, devices);
    }
    return updates.seconds() > kMuch * found.step.seconds();
  }

  // By the first size for which there is a plan; where none fits the host, the one that needs the
  // least of it. Smaller microbatches allow larger groups, which stash less. Above 0, `beat` is a
  // score that only a better plan is of use beside. `starts`: what other divisions have found.
  Contender Search(Division division, const std::vector<int64_t>& sizes, Nanos beat,
                   const std::vector<plan::Plan>& starts) const {
    Contender best{division, 0, {}, {}};
    int64_t most = std::numeric_limits<int64_t>::max();
    for (int64_t size : sizes) {
      if (size > most) continue;
      Contender candidate{division, size, {}, {}};
      if (beat > Nanos() && size == sizes.front()) {
        candidate.at_least = BoundOf(candidate);
        if (candidate.at_least >= beat) return candidate;
      }
      FindPlan(starts, &candidate);
      if (!candidate.found.found) {
        if (!best.found.found) best = std::move(candidate);
        continue;
      }
      most = size / 2;
      if (Better(candidate, best)) best = std::move(candidate);
      if (FitsHost(best)) break;
    }
    return best;
  }

  Nanos BoundOf(const Contender& candidate) const {
    const PlanBuilder builder = BuilderOf(candidate);
    const plan::Plan shape = builder.Blank();
    TaskCosts tasks(model_, shape, costs_(shape));
    return Bounds(model_, tasks)
        .OfAnyPlan(shape, candidate.division.sets, builder.ForwardTaskSizes());
  }

  // The search has each device's gradients leave in as few parts as there is memory for, and
  // devices that share a link pass weights on. Then with more parts, which frees memory; with
  // fewer, which devices add up among themselves; with all weights from the host, for a device that
  // passes them on holds them until the other one has room.
  void FindPlan(const std::vector<plan::Plan>& starts, Contender* candidate) const {
    const PlanBuilder builder = BuilderOf(*candidate);
    std::vector<plan::Plan> alike = FoundOnOwnLinks(*candidate);
    for (const plan::Plan& start : starts) {
      if (candidate->division.sets != DeviceSets::kAny) continue;
      if (start.resolved() == builder.Blank().resolved()) alike.push_back(start);
    }
    SearchOptions search = options_.search;
    search.share *= candidate->division.share;
    candidate->found = SearchPlans(builder, RulesOf(builder), partition_, costs_, search, alike);
    if (!candidate->found.found) return;
    Division division = candidate->division;
    const int most = candidate->found.best.plan.replicas;
    division.least_parts = 2;
    // More parts than some that are no gain are none either, and each try is a dry run.
    while (division.least_parts <= most && TryDivision(division, candidate)) {
      division.least_parts *= 2;
    }
    division = candidate->division;
    if (division.sets == DeviceSets::kSingle) return;
    const int devices = static_cast<int>(machine_.devices.size());
    for (division.add_up = 2; division.add_up <= devices; division.add_up *= 2) {
      TryDivision(division, candidate);
    }
    if (!candidate->found.best.plan.pass_weights) return;  // no two share a link
    division = candidate->division;
    division.pass_weights = false;
    TryDivision(division, candidate);
  }

  // The groups that were found, divided in another way; true where that is better, and is kept.
  bool TryDivision(const Division& division, Contender* candidate) const {
    ScoredPlan& best = candidate->found.best;
    const PlanBuilder builder(model_, job_, machine_, candidate->microbatch, division);
    plan::Plan plan = best.plan;
    plan.pass_weights = builder.Blank().pass_weights;
    StepExecutions step;
    if (!builder.Complete(&plan, &step) || !builder.FitsHost(plan)) return false;
    const absl::StatusOr<QuickDryRun> time = DryRunPlan(model_, plan, *costs_(plan));
    if (!time.ok()) return false;
    const Nanos score = builder.Score(plan, time->step);
    if (best.fits_host && score >= best.score) return false;
    best = {std::move(plan), best.bound, time->step, score, /*fits_host=*/true};
    candidate->division = division;
    return true;
  }

  static bool FitsHost(const Contender& of) { return of.found.found && of.found.best.fits_host; }
  static bool Better(const Contender& a, const Contender& b) {
    const auto rank = [](const Contender& of) {
      const ScoredPlan& best = of.found.best;
      return std::tuple(!of.found.found, !best.fits_host, best.score);
    };
    return rank(a) < rank(b);
  }

  // The mode that was not taken.
  static void Add(const Contender& other, const Contender& best, std::vector<Alternative>* all) {
    Alternative mode;
    mode.what = absl::StrCat("mode: ", ModeName(other.division.sets),
                             ", virtual_replicas: ", best.found.best.plan.replicas);
    const bool searched = other.at_least == Nanos() || other.found.found;
    mode.fits = !searched || FitsHost(other);
    mode.step = searched ? other.found.best.step : other.at_least;
    mode.why = !mode.fits                         ? "no plan of that mode fits the memory"
               : !searched                        ? "every plan of that mode takes longer"
               : mode.step > best.found.best.step ? "the best plan of that mode takes longer"
               : other.found.best.score > mode.step
                   ? "it is not faster by so much as to take more of the host's memory"
                   : "it is as fast";
    all->insert(all->begin(), std::move(mode));
  }

  // One device has no use for replicas that nobody asked for, but needs buffers for them.
  void AddOneReplica(const Contender& best, const std::vector<int64_t>& sizes,
                     std::vector<Alternative>* all) const {
    const bool automatic = job_.virtual_replicas == 0 && options_.replicas == 0;
    if (!automatic || machine_.devices.size() > 1 || best.found.best.plan.replicas == 1) return;
    const Contender one = Search({best.division.sets, 1}, sizes, Nanos(), {});
    if (!Better(one, best)) return;
    Alternative other;
    other.what = "virtual_replicas: 1";
    other.fits = true;
    other.step = one.found.best.step;
    other.why = "faster, but for a new run: it fixes other bits, and no devices can share a layer";
    all->insert(all->begin(), std::move(other));
  }

  // With one more device like the last one, and the same result. 0: there is no such plan, or it is
  // not known how fast that device would be.
  Nanos StepWithOneMore(const plan::Plan& plan) const {
    if (options_.costs && !options_.costs_with_one_more) return Nanos();
    plan::MachineSpec machine = machine_;
    machine.devices.push_back(machine.devices.back());
    machine.devices.back().ordinal = static_cast<int>(machine.devices.size()) - 1;
    PlannerOptions options = options_;
    options.explain = false;
    options.microbatch_size = plan.microbatch_size;
    options.replicas = plan.replicas;
    const dispatch::CostFactory costs =
        options.costs ? options.costs_with_one_more
                      : dispatch::AnalyticCostFactory(model_, machine.devices);
    Planning one_more(model_, job_, machine, costs, options);
    const absl::StatusOr<PlanResult> more = one_more.Run(one_more.Sizes());
    return more.ok() ? more->estimate.step : Nanos();
  }

  const model::ModelSpec& model_;
  const job::JobSpec& job_;
  const plan::MachineSpec& machine_;
  const dispatch::CostFactory& costs_;
  const PlannerOptions& options_;
  std::vector<model::LayerRange> partition_;
};

}  // namespace

absl::Status Evaluate(const PlanBuilder& builder, const MoveRules& rules,
                      const dispatch::CostFactory& costs, const PlannerOptions& options,
                      PlanResult* result) {
  EvaluateOptions evaluate;
  evaluate.keep_timeline = options.explain;
  const std::unique_ptr<dispatch::CostModel> time = costs(result->plan);
  HARMONY_ASSIGN_OR_RETURN(result->estimate,
                           EvaluatePlan(builder.model(), result->plan, *time, evaluate));
  if (options.explain) {
    result->alternatives =
        CompareAlternatives(builder, rules, result->plan, result->estimate, *time);
  }
  result->basis = options.costs ? options.basis : BasisOfSpeeds(builder.machine());
  return absl::OkStatus();
}

std::vector<int64_t> MicrobatchesToTry(const model::ModelSpec& model, const job::JobSpec& job,
                                       const plan::MachineSpec& machine,
                                       const dispatch::CostFactory& costs,
                                       const PlannerOptions& options) {
  return Planning(model, job, machine, costs, options).Sizes();
}

absl::StatusOr<PlanResult> SearchedPlan(const model::ModelSpec& model, const job::JobSpec& job,
                                        const plan::MachineSpec& machine,
                                        const dispatch::CostFactory& costs,
                                        const PlannerOptions& options,
                                        const std::vector<int64_t>& microbatches) {
  return Planning(model, job, machine, costs, options).Run(microbatches);
}

}  // namespace harmony::planner
