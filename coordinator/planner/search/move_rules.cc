#include "coordinator/planner/search/move_rules.h"

#include "absl/algorithm/container.h"
#include "common/model/model_sizes.h"
#include "coordinator/planner/search/placement.h"

namespace harmony::planner {

MoveRules RulesOf(const PlanBuilder& builder) {
  const job::JobSpec& job = builder.job();
  MoveRules rules;
  rules.forward_task_sizes = builder.ForwardTaskSizes();
  SetDeviceChoices(builder.DeviceChoices(), &rules);
  rules.groups = job.layer_groups.empty();
  rules.update = job.update == job::UpdateMode::kAuto && !job.DeferredUpdates();
  rules.stash = job.stash;
  // Of some models it is not known what a forward leaves for its backward.
  const int64_t samples = builder.Blank().microbatch_size;
  rules.activations = absl::c_all_of(builder.model().costs, [&](const model::LayerCost& cost) {
    return model::KeptTensorBytes(cost, samples) < model::kMostBytes;
  });
  rules.alike_devices = builder.alike_devices();
  return rules;
}

}  // namespace harmony::planner
