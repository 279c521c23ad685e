#include "bench/published_planner/ours/listed_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/published_planner/ours/least_memory.h"
#include "common/base/status.h"
#include "coordinator/planner/fit/plan_builder.h"

namespace harmony::published {
namespace {

constexpr int kMostSlots = 3;
// A plan whose time by a quick dry run is longer is not simulated.
constexpr double kMayBeBest = 1.05;

// One of the plans that a schedule may mean.
struct Reading {
  plan::Plan plan;
  bool fits = true;
  Nanos dry_run;
};

absl::Status Read(const ImportedModel& imported, plan::Plan plan, std::vector<Reading>* readings) {
  plan::MachineSpec machine = imported.machine;
  const std::vector<Bytes> least = LeastMemory(imported.model, plan);
  Reading reading;
  planner::StepExecutions step;
  for (;;) {
    const planner::PlanBuilder builder(imported.model, imported.job, machine, plan.microbatch_size);
    plan.devices = builder.Blank().devices;
    if (builder.Complete(&plan, &step)) break;
    if (!reading.fits) return absl::InternalError("the plan's need is not what it needs");
    reading.fits = false;
    for (size_t d = 0; d < least.size(); ++d) {
      machine.devices[d].memory = std::max(machine.devices[d].memory, least[d]);
    }
  }
  HARMONY_RETURN_IF_ERROR(plan::CheckPlan(imported.model, plan));
  HARMONY_ASSIGN_OR_RETURN(const planner::QuickDryRun dry_run,
                           planner::DryRunPlan(imported.model, plan, *imported.costs(plan)));
  reading.dry_run = dry_run.step;
  reading.plan = std::move(plan);
  readings->push_back(std::move(reading));
  return absl::OkStatus();
}

// Simulates those that may be the best.
absl::StatusOr<JudgedSchedule> BestOf(const ImportedModel& imported,
                                      std::vector<Reading> readings) {
  Nanos least = readings[0].dry_run;
  for (const Reading& reading : readings) least = std::min(least, reading.dry_run);
  std::optional<JudgedSchedule> best;
  for (Reading& reading : readings) {
    if (reading.dry_run.seconds() > least.seconds() * kMayBeBest) continue;
    HARMONY_ASSIGN_OR_RETURN(
        harmony::planner::Estimate estimate,
        planner::EvaluatePlan(imported.model, reading.plan, *imported.costs(reading.plan)));
    if (best && estimate.step >= best->estimate.step) continue;
    best = JudgedSchedule{std::move(reading.plan), std::move(estimate), reading.fits};
  }
  return *std::move(best);
}

}  // namespace

std::vector<int> ForwardTaskSizesOf(int64_t u_fwd, int64_t u_bwd, int microbatches) {
  int below = 1, above = microbatches;
  for (int task_microbatches = 1; task_microbatches <= microbatches; ++task_microbatches) {
    if (microbatches % task_microbatches != 0) continue;
    if (task_microbatches * u_bwd <= u_fwd) below = task_microbatches;
    if (task_microbatches * u_bwd >= u_fwd) above = std::min(above, task_microbatches);
  }
  return below == above ? std::vector<int>{below} : std::vector<int>{below, above};
}

void SetGroups(const Schedule& schedule, int devices, plan::Plan* plan) {
  int task = 0;
  for (const Pack& pack : schedule.forward) {
    plan->forward_groups.push_back({{pack.first, pack.last}, task++ % devices});
  }
  for (const Pack& pack : schedule.backward) {
    plan->backward_groups.push_back({{pack.first, pack.last}, 0});
  }
  for (auto group = plan->backward_groups.rbegin(); group != plan->backward_groups.rend();
       ++group) {
    group->devices = task++ % devices;
  }
}

absl::StatusOr<JudgedSchedule> JudgeSchedule(const LayerProfile& profile, const Machine& machine,
                                             Mode mode, int64_t minibatch,
                                             const Schedule& schedule) {
  const int devices = mode == Mode::kPipeline ? machine.gpus : 1;
  HARMONY_ASSIGN_OR_RETURN(
      const ImportedModel imported,
      ImportModel(profile, machine, devices, SamplesPerTask(mode, machine.gpus, minibatch)));
  plan::Plan plan =
      planner::PlanBuilder(imported.model, imported.job, imported.machine, schedule.u_bwd).Blank();
  SetGroups(schedule, devices, &plan);
  std::vector<Reading> readings;
  for (int task_microbatches :
       ForwardTaskSizesOf(schedule.u_fwd, schedule.u_bwd, plan.num_microbatches)) {
    plan.microbatches_per_forward_task = task_microbatches;
    if (!Covers(profile.forward, plan.forward_size())) continue;
    for (job::UpdateMode update : {job::UpdateMode::kEager, job::UpdateMode::kDeferred}) {
      plan.update = update;
      for (plan.stream_slots = 1; plan.stream_slots <= kMostSlots; ++plan.stream_slots) {
        HARMONY_RETURN_IF_ERROR(Read(imported, plan, &readings));
      }
    }
  }
  if (readings.empty()) {
    return absl::InvalidArgumentError("u_fwd: our planner has no such forward tasks");
  }
  return BestOf(imported, std::move(readings));
}

}  // namespace harmony::published
