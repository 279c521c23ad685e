#include "coordinator/planner/fit/given_plan.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/dispatch/memory/kept_layout.h"
#include "coordinator/planner/fit/fit_advice.h"

namespace harmony::planner {
namespace {

absl::Status CheckAgainstJob(const job::JobSpec& job, const BegunWith& begun,
                             const plan::Plan& given) {
  const struct {
    absl::string_view field, key;
    int64_t is, of_job, begun;  // the latter two 0: open
  } numbers[] = {
      {"sequence_length", "sequence_length", given.sequence_length, job.sequence_length, 0},
      {"micro_batch_size", "micro_batch_size", given.microbatch_size, job.micro_batch_size,
       begun.microbatch_size},
      {"replicas", "virtual_replicas", given.replicas, job.virtual_replicas, begun.replicas},
      {"num_microbatches, times micro_batch_size", "global_batch_size", given.global_batch(),
       job.global_batch_size, 0}};
  for (const auto& number : numbers) {
    const bool by_job = number.of_job > 0;
    const int64_t wanted = by_job ? number.of_job : number.begun;
    if (wanted == 0 || number.is == wanted) continue;
    return absl::InvalidArgumentError(absl::StrCat(number.field, ": ", number.is, ", but the ",
                                                   by_job ? "job has " : "run was begun with ",
                                                   number.key, ": ", wanted));
  }
  if (job.micro_batch_size > 0 && given.microbatches_per_forward_task > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("forward_span: ", given.microbatches_per_forward_task,
                     ", but the job has micro_batch_size: ", job.micro_batch_size,
                     ", which forward and backward both use (auto leaves it ", "open)"));
  }
  // With one device, or where the replicas allow no more, a plan is of either mode.
  const absl::string_view mode = ModeOf(given);
  const bool all = absl::c_all_of(given.backward_groups, [&](const plan::LayerGroup& group) {
    return group.devices == AllDevices(given);
  });
  const bool either = job.mode == "harmony-dp" && mode == "harmony-pp" && all;
  if (job.mode != "auto" && job.mode != mode && !either) {
    return absl::InvalidArgumentError(
        absl::StrCat("the groups' devices make it ", mode, ", but the job has mode: ", job.mode));
  }
  if (job.update != job::UpdateMode::kAuto && job.update != given.update) {
    return absl::InvalidArgumentError(
        absl::StrCat("update: ", ToString(given.update), ", but the job says the other (update)"));
  }
  if (given.update == job::UpdateMode::kEager && job.DeferredUpdates()) {
    return absl::InvalidArgumentError("update: eager, but the job clips gradients (max_grad_norm)");
  }
  return absl::OkStatus();
}

absl::Status TooLarge(const model::ModelSpec& model, const plan::Plan& plan,
                      const StepExecutions& step) {
  const dispatch::KeptLayout kept(model, plan);
  for (size_t v = 0; v < step.executions.size(); ++v) {
    const dispatch::GroupExecution& execution = step.executions[v];
    const plan::DevicePlan& device = plan.devices[execution.device];
    const Bytes need = dispatch::TotalOf(step.items[v]) + kept.bytes(execution.device);
    if (need <= device.resident) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        execution.kind == dispatch::ExecutionKind::kForward ? "forward_groups["
                                                            : "backward_groups[",
        execution.group, "]: layers ", execution.layers.first, " to ", execution.layers.last,
        " need ", FormatBytesExact(need), " of device ", execution.device, ", which has ",
        FormatBytesExact(device.memory), ", ", FormatBytesExact(device.resident),
        " of it beside the largest workspace: ", FormatBytesExact(need - device.resident),
        " missing"));
  }
  return absl::InternalError("the plan does not fit");
}

}  // namespace

absl::StatusOr<plan::Plan> AdoptPlan(const model::ModelSpec& model, const job::JobSpec& job,
                                     const plan::MachineSpec& machine, const plan::Plan& given,
                                     absl::string_view where, const BegunWith& begun,
                                     const ModelOfLength& of_length) {
  HARMONY_RETURN_IF_ERROR_CTX(CheckAgainstJob(job, begun, given), where);
  const PlanBuilder builder(model, job, machine, given.microbatch_size, DivisionOf(given));
  plan::Plan plan = builder.Blank();
  plan.update = given.update;
  plan.gradient_dtype = given.gradient_dtype;
  plan.microbatches_per_forward_task = given.microbatches_per_forward_task;
  plan.stream_slots = given.stream_slots;
  plan.forward_groups = given.forward_groups;
  plan.backward_groups = given.backward_groups;
  HARMONY_RETURN_IF_ERROR_CTX(plan::CheckPlan(model, plan), where);
  StepExecutions step;
  if (!builder.CompleteAsDivided(&plan, &step)) {
    HARMONY_RETURN_IF_ERROR_CTX(TooLarge(model, plan, step), where);
  }
  if (!builder.FitsHost(plan)) return HostTooSmall(model, job, machine, plan, of_length);
  return plan;
}

}  // namespace harmony::planner
