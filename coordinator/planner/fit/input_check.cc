#include "coordinator/planner/fit/input_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/fit/plan_builder.h"
#include "coordinator/planner/timing/task_costs.h"

namespace harmony::planner {

absl::Status CheckTimes(const model::ModelSpec& model, const job::JobSpec& job,
                        const plan::MachineSpec& machine, const dispatch::CostFactory& costs,
                        int64_t microbatch) {
  constexpr double kMostSeconds = 1e9;
  const PlanBuilder builder(model, job, machine, microbatch);
  const plan::Plan shape = builder.Blank();
  TaskCosts tasks(model, shape, costs(shape));
  double most = 0, update = 0;
  for (size_t block = 0; block < model.blocks.size(); ++block) {
    update += tasks.Update(static_cast<int>(block)).seconds();
  }
  for (int d = 0; d < tasks.num_devices(); ++d) {
    double each = 0, once = update;  // of a microbatch, of a step
    for (int layer = 0; layer < model.num_layers(); ++layer) {
      each += tasks.HiddenIn(layer, d, 1).seconds() + tasks.HiddenOut(layer, d, 1).seconds();
      each += tasks.ComputeAlone(layer, d).seconds();
      for (int reference : model.layers[layer].references) {
        once += 2 * tasks.Load(model.references[reference].block, d).seconds();
        once += tasks.GradientOut(reference, d).seconds();
      }
    }
    most = std::max(most, each * shape.num_microbatches + once);
  }
  if (most <= kMostSeconds) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a step would take more than 30 years (", most, " s on one device): check the speeds of the ",
      "devices (flops=, h2d=, d2h=, host=) or the profile, and global_batch_size"));
}

}  // namespace harmony::planner
