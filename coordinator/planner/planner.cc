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
  if (job.mode != "auto" && job.mode != "harmony-pp") {
    return absl::UnimplementedError(
        absl::StrCat("mode: ", job.mode, " is not built yet; use auto or harmony-pp"));
  }
  if (job.virtual_replicas > 1) {
    return absl::UnimplementedError(
        absl::StrCat("virtual_replicas: ", job.virtual_replicas, " is not built yet; use 1"));
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
  if (job.micro_batch_size == 0 && options.microbatch_size > 0 && size != options.microbatch_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.given_path, ": micro_batch_size: ", size, ", but the run was begun with ",
        options.microbatch_size, ", which fixes its result"));
  }
  HARMONY_ASSIGN_OR_RETURN(result->plan,
                           AdoptPlan(model, job, machine, *options.given, options.given_path));
  result->searched = false;
  const PlanBuilder builder(model, job, machine, size);
  const MoveRules rules = RulesOf(job, builder);
  HARMONY_RETURN_IF_ERROR_CTX(Evaluate(builder, rules, costs, options, result), options.given_path);
  const Plan shape = builder.Blank();
  TaskCosts tasks(model, shape, costs(shape));
  result->report.lower_bound = Bounds(model, tasks).OfAnyPlan(shape, rules.spans);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlanResult> MakePlan(const ModelSpec& model, const JobSpec& job,
                                    const MachineSpec& machine, const PlannerOptions& options) {
  HARMONY_RETURN_IF_ERROR(CheckKeys(job, machine));
  const CostFactory costs =
      options.costs ? options.costs : AnalyticCostFactory(model, machine.devices);
  PlanResult result;
  if (options.given != nullptr) {
    HARMONY_RETURN_IF_ERROR(TakeGiven(model, job, machine, costs, options, &result));
    return result;
  }
  std::vector<LayerRange> partition;
  if (!job.layer_groups.empty()) {
    HARMONY_ASSIGN_OR_RETURN(partition, FixedPartition(model, job.layer_groups));
  }
  std::vector<int64_t> sizes = {options.microbatch_size};
  if (job.micro_batch_size > 0 || options.microbatch_size == 0) {
    sizes = MicrobatchSizes(model, job, machine, costs,
                            Paced(machine) || (options.costs && !options.rough));
  }
  for (int64_t size : sizes) {
    const PlanBuilder builder(model, job, machine, size);
    const MoveRules rules = RulesOf(job, builder);
    SearchResult found = SearchPlans(builder, rules, partition, costs, options.search);
    if (!found.found) continue;
    result.plan = std::move(found.best.plan);
    if (!builder.FitsHost(result.plan)) return HostTooSmall(model, job, machine, result.plan);
    result.report = std::move(found.report);
    HARMONY_RETURN_IF_ERROR(Evaluate(builder, rules, costs, options, &result));
    return result;
  }
  return DeviceTooSmall(model, job, machine, sizes.back(), partition);
}

}  // namespace harmony
