#include "coordinator/planner/given_plan.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/core/kept_layout.h"
#include "coordinator/planner/fit_advice.h"

namespace harmony {
namespace {

absl::Status CheckAgainstJob(const JobSpec& job, const Plan& given) {
  const auto wrong = [](absl::string_view field, int64_t is, absl::string_view key,
                        int64_t wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", is, ", but the job has ", key, ": ", wanted));
  };
  if (given.sequence_length != job.sequence_length) {
    return wrong("sequence_length", given.sequence_length, "sequence_length", job.sequence_length);
  }
  if (job.micro_batch_size > 0 && given.microbatch_size != job.micro_batch_size) {
    return wrong("micro_batch_size", given.microbatch_size, "micro_batch_size",
                 job.micro_batch_size);
  }
  if (job.micro_batch_size > 0 && given.forward_span > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "forward_span: ", given.forward_span, ", but the job has micro_batch_size: ",
        job.micro_batch_size, ", which forward and backward both use (auto leaves it ", "open)"));
  }
  if (job.mode != "auto" && job.mode != ToString(given.mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("mode: ", ToString(given.mode), ", but the job has mode: ", job.mode));
  }
  if (job.virtual_replicas > 0 && given.replicas != job.virtual_replicas) {
    return wrong("replicas", given.replicas, "virtual_replicas", job.virtual_replicas);
  }
  if (job.global_batch_size % given.microbatch_size != 0 ||
      job.global_batch_size / given.microbatch_size != given.num_microbatches) {
    return wrong("num_microbatches, times micro_batch_size", given.global_batch(),
                 "global_batch_size", job.global_batch_size);
  }
  const bool eager = given.update == UpdateMode::kEager;
  if (eager && job.max_grad_norm > 0) {
    return absl::InvalidArgumentError("update: eager, but the job clips gradients (max_grad_norm)");
  }
  if (job.update != UpdateMode::kAuto && job.update != given.update) {
    return absl::InvalidArgumentError(
        absl::StrCat("update: ", ToString(given.update), ", but the job says the other (update)"));
  }
  return absl::OkStatus();
}

absl::Status CheckAgainstModel(const ModelSpec& model, const Plan& given) {
  const int end = given.backward_groups.back().layers.last;
  if (end + 1 == model.num_layers()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("backward_groups: they end with layer ", end,
                                                 ", the model has layers 0 to ",
                                                 model.num_layers() - 1));
}

absl::Status CheckDevices(const std::vector<LayerGroup>& groups, absl::string_view field,
                          size_t devices) {
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].device < static_cast<int>(devices)) continue;
    return absl::InvalidArgumentError(absl::StrCat(field, "[", i, "].device: ", groups[i].device,
                                                   ", but there are ", devices,
                                                   " devices, numbered from 0"));
  }
  return absl::OkStatus();
}

absl::Status TooLarge(const ModelSpec& model, const Plan& plan, const StepVisits& step) {
  const KeptLayout kept(model, plan);
  for (size_t v = 0; v < step.visits.size(); ++v) {
    const Visit& visit = step.visits[v];
    const DevicePlan& device = plan.devices[visit.device];
    const Bytes need = TotalOf(step.items[v]) + kept.bytes(visit.device);
    if (need <= device.resident) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        visit.kind == VisitKind::kForward ? "forward_groups[" : "backward_groups[", visit.group,
        "]: layers ", visit.layers.first, " to ", visit.layers.last, " need ",
        FormatBytesExact(need), " of device ", visit.device, ", which has ",
        FormatBytesExact(device.memory), ", ", FormatBytesExact(device.resident),
        " of it beside the largest workspace: ", FormatBytesExact(need - device.resident),
        " missing"));
  }
  return absl::InternalError("the plan does not fit");
}

}  // namespace

absl::StatusOr<Plan> AdoptPlan(const ModelSpec& model, const JobSpec& job,
                               const MachineSpec& machine, const Plan& given,
                               absl::string_view where, const ModelOfLength& of_length) {
  HARMONY_RETURN_IF_ERROR_CTX(CheckAgainstJob(job, given), where);
  HARMONY_RETURN_IF_ERROR_CTX(CheckAgainstModel(model, given), where);
  const size_t devices = machine.devices.size();
  HARMONY_RETURN_IF_ERROR_CTX(CheckDevices(given.forward_groups, "forward_groups", devices), where);
  HARMONY_RETURN_IF_ERROR_CTX(CheckDevices(given.backward_groups, "backward_groups", devices),
                              where);
  const PlanBuilder builder(model, job, machine, given.microbatch_size,
                            {given.mode, given.replicas});
  Plan plan = builder.Blank();
  plan.update = given.update;
  plan.forward_span = given.forward_span;
  plan.stream_slots = given.stream_slots;
  plan.forward_groups = given.forward_groups;
  plan.backward_groups = given.backward_groups;
  HARMONY_RETURN_IF_ERROR_CTX(CheckPlan(model, plan), where);
  StepVisits step;
  if (!builder.Complete(&plan, &step)) {
    HARMONY_RETURN_IF_ERROR_CTX(TooLarge(model, plan, step), where);
  }
  if (!builder.FitsHost(plan)) return HostTooSmall(model, job, machine, plan, of_length);
  return plan;
}

}  // namespace harmony
