#include "bench/published_planner/ours/profile_plan.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/runtime/run_both.h"

namespace harmony::published {

absl::StatusOr<planner::PlanResult> PlanProfile(const LayerProfile& profile, const Machine& machine,
                                                Mode mode, int64_t minibatch) {
  if (mode == Mode::kDataParallel && minibatch % machine.gpus != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("minibatch ", minibatch, " does not divide over ", machine.gpus, " GPUs"));
  }
  const int devices = mode == Mode::kPipeline ? machine.gpus : 1;
  HARMONY_ASSIGN_OR_RETURN(
      ImportedModel imported,
      ImportModel(profile, machine, devices, SamplesPerTask(mode, machine.gpus, minibatch)));
  // The planner searches longer for a long run: one step is worth the least.
  imported.job.max_steps = 1;
  planner::PlannerOptions options;
  options.costs = imported.costs;
  options.run_both = runtime::RunBoth;  // as where users plan
  return planner::MakePlan(imported.model, imported.job, imported.machine, options);
}

}  // namespace harmony::published
