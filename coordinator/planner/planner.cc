#include "coordinator/planner/planner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/planner/fit_advice.h"
#include "coordinator/planner/given_plan.h"
#include "coordinator/planner/grouping.h"
#include "coordinator/planner/microbatch.h"

namespace harmony {
namespace {

absl::Status CheckKeys(const JobSpec& job, const MachineSpec& machine) {
  if (machine.devices.empty()) return absl::InvalidArgumentError("devices: there is none");
  if (job.mode != "auto" && job.mode != "harmony-pp" && job.mode != "harmony-dp") {
    return absl::UnimplementedError(
        absl::StrCat("mode: ", job.mode, " is not built yet; use auto, harmony-pp or harmony-dp"));
  }
  if (job.micro_batch_size > 0 && job.global_batch_size % job.micro_batch_size != 0) {
    return absl::InvalidArgumentError(absl::StrCat("micro_batch_size: ", job.micro_batch_size,
                                                   " does not divide global_batch_size ",
                                                   job.global_batch_size));
  }
  if (job.update == UpdateMode::kEager && job.max_grad_norm > 0) {
    return absl::InvalidArgumentError(
        "update: eager updates cannot be clipped (max_grad_norm): use auto or deferred");
  }
  return absl::OkStatus();
}

MoveRules RulesOf(const JobSpec& job, const PlanBuilder& builder) {
  const MachineSpec& machine = builder.machine();
  MoveRules rules;
  rules.spans = builder.ForwardSpans();
  rules.groups = job.layer_groups.empty();
  rules.update = job.update == UpdateMode::kAuto && job.max_grad_norm == 0;
  rules.stash = job.stash;
  rules.alike_devices =
      std::all_of(machine.devices.begin(), machine.devices.end(), [&](DeviceSpec device) {
        device.ordinal = machine.devices.front().ordinal;
        device.cuda_ordinal = machine.devices.front().cuda_ordinal;
        return ToString(device) == ToString(machine.devices.front());
      });
  return rules;
}

bool Paced(const MachineSpec& machine) {
  return std::all_of(machine.devices.begin(), machine.devices.end(), HasSpeeds);
}

std::string BasisOf(const MachineSpec& machine, const PlannerOptions& options) {
  if (options.costs) return options.basis;
  if (Paced(machine)) {
    return "modelled: the speeds given for the devices; the host's is a guess (8 GB/s)";
  }
  return "guesses, since no speeds are given (a device 40 GFLOP/s and 4 GB/s, the host 8 GB/s): "
         "plans are compared by them, but the time can be far off. Measure with `harmony profile`, "
         "or give flops=, h2d=, d2h=, p2p=";
}

// All that is to be said of the result's plan.
absl::Status Evaluate(const PlanBuilder& builder, const MoveRules& rules, const CostFactory& costs,
                      const PlannerOptions& options, PlanResult* result) {
  EvaluateOptions evaluate;
  evaluate.keep_timeline = options.explain;
  const std::unique_ptr<CostModel> time = costs(result->plan);
  HARMONY_ASSIGN_OR_RETURN(result->estimate,
                           EvaluatePlan(builder.model(), result->plan, *time, evaluate));
  if (options.explain) {
    result->alternatives =
        CompareAlternatives(builder, rules, result->plan, result->estimate, *time);
  }
  result->basis = BasisOf(builder.machine(), options);
  return absl::OkStatus();
}

absl::Status TakeGiven(const ModelSpec& model, const JobSpec& job, const MachineSpec& machine,
                       const CostFactory& costs, const PlannerOptions& options,
                       PlanResult* result) {
  const int64_t size = options.given->microbatch_size;
  const int replicas = options.given->replicas;
  if (job.virtual_replicas == 0 && options.replicas > 0 && replicas != options.replicas) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.given_path, ": replicas: ", replicas, ", but the run was begun with ",
                     options.replicas, " (virtual_replicas), which fixes its result"));
  }
  if (job.micro_batch_size == 0 && options.microbatch_size > 0 && size != options.microbatch_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.given_path, ": micro_batch_size: ", size, ", but the run was begun with ",
        options.microbatch_size, ", which fixes its result"));
  }
  HARMONY_ASSIGN_OR_RETURN(result->plan,
                           AdoptPlan(model, job, machine, *options.given, options.given_path));
  result->searched = false;
  const PlanBuilder builder(model, job, machine, size, {options.given->mode, replicas});
  const MoveRules rules = RulesOf(job, builder);
  HARMONY_RETURN_IF_ERROR_CTX(Evaluate(builder, rules, costs, options, result), options.given_path);
  const Plan shape = builder.Blank();
  TaskCosts tasks(model, shape, costs(shape));
  result->report.lower_bound = Bounds(model, tasks).OfAnyPlan(shape, rules.spans);
  return absl::OkStatus();
}

// What the job leaves open of the mode; the first one is the default. The replicas fix the result.
std::vector<Division> DivisionsOf(const JobSpec& job, const MachineSpec& machine,
                                  const PlannerOptions& options) {
  const int given = job.virtual_replicas > 0 ? job.virtual_replicas : options.replicas;
  std::vector<Division> divisions;
  if (job.mode != "harmony-dp") {
    divisions.push_back({ParallelMode::kPipeline, std::max(given, 1)});
  }
  const Division data{ParallelMode::kData,
                      given > 0 ? given : job.AutoReplicas(options.microbatch_size)};
  const bool worth_a_try = machine.devices.size() > 1 && data.replicas > 1;
  if (job.mode == "harmony-dp" || (job.mode == "auto" && worth_a_try)) divisions.push_back(data);
  return divisions;
}

// The search in one mode.
struct Candidate {
  Division division;
  int64_t microbatch = 0;
  SearchResult found;
  bool fits_host = false;
};

class Planning {
 public:
  Planning(const ModelSpec& model, const JobSpec& job, const MachineSpec& machine,
           const CostFactory& costs, const PlannerOptions& options)
      : model_(model), job_(job), machine_(machine), costs_(costs), options_(options) {}

  absl::StatusOr<PlanResult> Run() {
    if (!job_.layer_groups.empty()) {
      HARMONY_ASSIGN_OR_RETURN(partition_, FixedPartition(model_, job_.layer_groups));
    }
    std::vector<Candidate> all;
    for (const Division& division : DivisionsOf(job_, machine_, options_)) {
      all.push_back(Search(division));
    }
    const Candidate* best = &all.front();
    for (const Candidate& other : all) {
      if (Better(other, *best)) best = &other;
    }
    if (!best->found.found) {
      return DeviceTooSmall(model_, job_, machine_, best->microbatch, best->division, partition_);
    }
    PlanResult result;
    result.plan = best->found.best.plan;
    result.report = best->found.report;
    if (!best->fits_host) return HostTooSmall(model_, job_, machine_, result.plan);
    const PlanBuilder builder = BuilderOf(*best);
    HARMONY_RETURN_IF_ERROR(Evaluate(builder, RulesOf(job_, builder), costs_, options_, &result));
    for (const Candidate& other : all) {
      if (options_.explain && &other != best) Add(other, *best, &result.alternatives);
    }
    return result;
  }

 private:
  PlanBuilder BuilderOf(const Candidate& candidate) const {
    return PlanBuilder(model_, job_, machine_, candidate.microbatch, candidate.division);
  }

  Candidate Search(Division division) const {
    Candidate candidate{division, 0, {}, false};
    std::vector<int64_t> sizes = {options_.microbatch_size};
    if (job_.micro_batch_size > 0 || options_.microbatch_size == 0) {
      sizes = MicrobatchSizes(model_, job_, machine_, division, costs_,
                              Paced(machine_) || (options_.costs && !options_.rough));
    }
    for (int64_t size : sizes) {
      candidate.microbatch = size;
      const PlanBuilder builder = BuilderOf(candidate);
      candidate.found =
          SearchPlans(builder, RulesOf(job_, builder), partition_, costs_, options_.search);
      if (!candidate.found.found) continue;
      candidate.fits_host = builder.FitsHost(candidate.found.best.plan);
      break;
    }
    return candidate;
  }

  // Modes with fewer replicas, which need less of the host's memory, come first.
  static bool Better(const Candidate& a, const Candidate& b) {
    if (a.found.found != b.found.found) return a.found.found;
    if (a.fits_host != b.fits_host) return a.fits_host;
    const Nanos worth_it = a.division.replicas > b.division.replicas
                               ? PlanBuilder::WithMoreHostMemory(a.found.best.score)
                               : a.found.best.score;
    return worth_it < b.found.best.score;
  }

  // The mode that was not taken.
  static void Add(const Candidate& other, const Candidate& best, std::vector<Alternative>* all) {
    Alternative mode;
    mode.what = absl::StrCat("mode: ", ToString(other.division.mode),
                             ", virtual_replicas: ", other.division.replicas);
    mode.fits = other.found.found && other.fits_host;
    mode.step = other.found.best.step;
    mode.why = !mode.fits                         ? "does not fit the memory"
               : mode.step > best.found.best.step ? "the best plan of that mode takes longer"
                                                  : "not faster by what more host memory is worth";
    all->insert(all->begin(), std::move(mode));
  }

  const ModelSpec& model_;
  const JobSpec& job_;
  const MachineSpec& machine_;
  const CostFactory& costs_;
  const PlannerOptions& options_;
  std::vector<LayerRange> partition_;
};

}  // namespace

absl::StatusOr<PlanResult> MakePlan(const ModelSpec& model, const JobSpec& job,
                                    const MachineSpec& machine, const PlannerOptions& options) {
  HARMONY_RETURN_IF_ERROR(CheckKeys(job, machine));
  const CostFactory costs =
      options.costs ? options.costs : AnalyticCostFactory(model, machine.devices);
  if (options.given != nullptr) {
    PlanResult result;
    HARMONY_RETURN_IF_ERROR(TakeGiven(model, job, machine, costs, options, &result));
    return result;
  }
  return Planning(model, job, machine, costs, options).Run();
}

}  // namespace harmony
