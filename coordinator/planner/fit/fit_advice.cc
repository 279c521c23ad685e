#include "coordinator/planner/fit/fit_advice.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/job/job_check.h"
#include "coordinator/planner/fit/device_need.h"
#include "coordinator/planner/host_memory_error.h"
#include "coordinator/planner/search/placement.h"

namespace harmony::planner {
namespace {

plan::Plan PlanOf(const PlanBuilder& builder, job::StashPlacement stash,
                  const std::vector<model::LayerRange>& partition) {
  plan::Plan plan = builder.Blank();
  plan.stream_slots = 1;
  for (const model::LayerRange& layers : partition) {
    plan::LayerGroup& group = plan.backward_groups.emplace_back();
    group.layers = layers;
    group.keep_stash = stash == job::StashPlacement::kDevice;
  }
  MoveRules rules;
  SetDeviceChoices(builder.DeviceChoices(), &rules);
  WrapAround(rules, 0, &plan.backward_groups);
  MirrorForward(&plan);
  return plan;
}

bool Fits(const model::ModelSpec& model, const job::JobSpec& job, const plan::MachineSpec& machine,
          int64_t microbatch, Division division, const std::vector<model::LayerRange>& partition) {
  const PlanBuilder builder(model, job, machine, microbatch, division);
  plan::Plan plan = PlanOf(builder, job.stash, partition);
  StepExecutions step;
  return builder.Complete(&plan, &step) && builder.FitsHost(plan);
}

// The largest value below the present one for which `fits` holds, among its divisors or halves.
template <typename Fit>
int64_t Smaller(int64_t present, bool divisors, const Fit& fits) {
  for (int64_t value = divisors ? present - 1 : present / 2; value >= 1;
       value = divisors ? value - 1 : value / 2) {
    if (divisors && present % value != 0) continue;
    if (fits(value)) return value;
  }
  return 0;
}

// The longest sequence below the present one, among its halves, with which the model fits.
template <typename Fit>
int64_t SmallerLength(const job::JobSpec& job, const ModelOfLength& of_length, const Fit& fits) {
  if (!of_length) return 0;
  return Smaller(job.sequence_length, /*divisors=*/false, [&](int64_t length) {
    const absl::StatusOr<model::ModelSpec> model = of_length(length);
    return model.ok() && fits(*model);
  });
}

}  // namespace

absl::Status DeviceTooSmall(const model::ModelSpec& model, const job::JobSpec& job,
                            const plan::MachineSpec& machine, int64_t microbatch, Division division,
                            const std::vector<model::LayerRange>& partition,
                            const ModelOfLength& of_length) {
  std::vector<model::LayerRange> finest = partition;
  for (int layer = 0; partition.empty() && layer < model.num_layers(); ++layer) {
    finest.push_back({layer, layer});
  }
  const PlanBuilder builder(model, job, machine, microbatch, division);
  plan::Plan plan = PlanOf(builder, job.stash, finest);
  StepExecutions step;
  builder.Complete(&plan, &step);
  const std::vector<GroupNeed> needs = NeedOfGroups(model, plan);
  const std::vector<DeviceNeed> of_device = NeedOfDevices(plan, needs);
  const auto room_of = [&](const GroupNeed& need) {
    return of_device[need.device].total() + Bytes(kResidentGranule);
  };
  // What lacks most: with that much more all groups of its device fit, and of those like it.
  const GroupNeed* need = nullptr;
  Bytes missing;
  for (const GroupNeed& each : needs) {
    const Bytes lacks = room_of(each) - plan.devices[each.device].memory;
    if (each.resident() < of_device[each.device].resident.resident() || lacks <= missing) continue;
    need = &each;
    missing = lacks;
  }
  if (need == nullptr) {
    return absl::InternalError(absl::StrCat("no plan runs dry: ", DebugString(plan)));
  }
  std::string text = absl::StrCat(
      KindName(need->kind), " of layers ", need->layers.first, " to ", need->layers.last,
      " does not fit device ", need->device, " (",
      FormatBytesExact(plan.devices[need->device].memory), "): weights ",
      FormatBytes(need->weights), ", gradients ", FormatBytes(need->gradients), ", activations ",
      FormatBytes(need->streaming), ", workspace ",
      FormatBytes(of_device[need->device].workspace.workspace),
      need->kept.count() > 0 ? absl::StrCat(", stashes of all its groups ", FormatBytes(need->kept))
                             : "",
      "; ", FormatBytesExact(missing), " missing. It fits with mem=",
      machine.devices[need->device].MemoryFor(room_of(*need)).count());
  job::JobSpec advised = job;
  advised.virtual_replicas = division.replicas;
  const int64_t smaller = Smaller(microbatch, /*divisors=*/true, [&](int64_t size) {
    advised.micro_batch_size = size;  // what is advised must be taken
    return job::CheckJob(advised).ok() && Fits(model, job, machine, size, division, finest);
  });
  if (smaller > 0) absl::StrAppend(&text, ", or with micro_batch_size: ", smaller);
  const int64_t shorter = SmallerLength(job, of_length, [&](const model::ModelSpec& other) {
    return Fits(other, job, machine, microbatch, division, finest);
  });
  if (shorter > 0) absl::StrAppend(&text, ", or with sequence_length: ", shorter);
  job::JobSpec on_host = job;
  on_host.stash = job::StashPlacement::kHost;
  if (need->kept.count() > 0 && Fits(model, on_host, machine, microbatch, division, finest)) {
    absl::StrAppend(&text, ", or with stash: host");
  }
  if (!partition.empty() && need->layers.count() > 1) {
    absl::StrAppend(&text, ", or with fewer layers in that group (layer_groups)");
  }
  if (!builder.FitsHost(plan)) {
    absl::StrAppend(&text, ". The host arena of such a plan needs ",
                    FormatBytesExact(builder.SegmentBytes(plan)), " as well, host_memory is ",
                    FormatBytesExact(machine.host_memory));
  }
  return absl::ResourceExhaustedError(text);
}

absl::Status HostTooSmall(const model::ModelSpec& model, const job::JobSpec& job,
                          const plan::MachineSpec& machine, const plan::Plan& plan,
                          const ModelOfLength& of_length) {
  const PlanBuilder builder(model, job, machine, plan.microbatch_size, DivisionOf(plan));
  const Bytes need = builder.SegmentBytes(plan), tables = need - builder.ArenaBytes(plan);
  std::vector<std::string> ways = {absl::StrCat("--host-memory ", need.count())};
  const auto fits = [](const PlanBuilder& any, plan::Plan other) {
    StepExecutions step;
    any.CompleteAsDivided(&other, &step);
    return any.FitsHost(other);
  };
  // What is so already does not make it fit either, and is not offered.
  const auto offer = [&](const PlanBuilder& any, const plan::Plan& other, absl::string_view way) {
    if (fits(any, other)) ways.emplace_back(way);
  };
  plan::Plan other = plan;
  other.optimizer_moments = 0;
  offer(builder, other, "optim: sgd");
  other = plan;
  if (!plan.clip) other.update = job::UpdateMode::kEager;
  offer(builder, other, "update: eager");
  if (job.bf16) {
    model::ModelSpec narrow = model;
    model::StoreGradientsAs(DType::kBF16, narrow);
    offer(PlanBuilder(narrow, job, machine, plan.microbatch_size, DivisionOf(plan)), plan,
          "gradient_dtype: bf16 (in a new run)");
  }
  const int64_t batch = Smaller(job.global_batch_size, /*divisors=*/false, [&](int64_t size) {
    plan::Plan smaller = plan;
    smaller.num_microbatches = static_cast<int>(size / plan.microbatch_size);
    return size % (plan.microbatch_size * plan.replicas) == 0 && smaller.num_microbatches > 0 &&
           fits(builder, smaller);
  });
  if (batch > 0) ways.push_back(absl::StrCat("global_batch_size: ", batch));
  const int64_t shorter = SmallerLength(job, of_length, [&](const model::ModelSpec& short_model) {
    return fits(PlanBuilder(short_model, job, machine, plan.microbatch_size, DivisionOf(plan)),
                plan);
  });
  if (shorter > 0) ways.push_back(absl::StrCat("sequence_length: ", shorter));
  return HostMemoryError(absl::ResourceExhaustedError(absl::StrCat(
      "the host arena needs ", FormatBytesExact(need),
      plan.gradient_dtype == DType::kBF16 ? " with gradients of bf16" : "",
      tables.count() > 0 ? absl::StrCat(" (", FormatBytes(tables), " of it for tables)") : "",
      ", host_memory is ", FormatBytesExact(machine.host_memory), ": ",
      FormatBytesExact(need - machine.host_memory), " too little. It fits with ",
      absl::StrJoin(ways, ", or with "), ". Storage (NVMe) is not counted: it is not built yet")));
}

}  // namespace harmony::planner
