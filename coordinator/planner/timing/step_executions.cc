#include <algorithm>
#include <numeric>

#include "coordinator/planner/timing/bounds.h"

namespace harmony::planner {

StepExecutions ExecutionsOf(const model::ModelSpec& model, const plan::Plan& plan, int for_all) {
  StepExecutions step;
  step.for_all = for_all;
  const int forwards = static_cast<int>(plan.forward_groups.size());
  const int backwards = static_cast<int>(plan.backward_groups.size());
  const auto shards_of = [for_all](const plan::LayerGroup& group) {
    return for_all > 0 ? for_all : group.devices.num_shards();
  };
  int count = 0;
  for (const plan::LayerGroup& group : plan.forward_groups) count += shards_of(group);
  for (const plan::LayerGroup& group : plan.backward_groups) count += shards_of(group);
  step.executions.reserve(count);
  for (int f = 0; f < forwards; ++f) {
    for (int shard = 0; shard < shards_of(plan.forward_groups[f]); ++shard) {
      step.executions.push_back(
          dispatch::PlannedExecution(model, plan, dispatch::ExecutionKind::kForward, f, shard));
    }
  }
  for (int g = backwards - 1; g >= 0; --g) {
    const dispatch::ExecutionKind kind =
        g + 1 == backwards ? dispatch::ExecutionKind::kFused : dispatch::ExecutionKind::kBackward;
    for (int shard = 0; shard < shards_of(plan.backward_groups[g]); ++shard) {
      step.executions.push_back(dispatch::PlannedExecution(model, plan, kind, g, shard));
    }
  }
  step.items.reserve(step.executions.size());
  for (dispatch::GroupExecution& execution : step.executions)
    step.items.push_back(dispatch::LayOutItems(model, plan, execution));
  return step;
}

plan::DeviceSet AllDevices(const plan::Plan& shape) {
  return plan::DeviceSet::All(static_cast<int>(shape.devices.size()), shape.replicas);
}

int DevicesForAll(const plan::Plan& plan) {
  const plan::DeviceSet& all = plan.backward_groups.back().devices;
  if (all.size() == 1 || all != plan::DeviceSet::First(all.size())) return 0;
  for (const auto* groups : {&plan.forward_groups, &plan.backward_groups}) {
    for (const plan::LayerGroup& group : *groups) {
      if (group.devices != all) return 0;
    }
  }
  for (const plan::DevicePlan& device : plan.devices) {
    if (device.root != 0) return 0;
  }
  int together = 1;
  for (const plan::LayerGroup& group : plan.backward_groups) {
    together = std::max(together, all.size() / group.gradient_parts);
  }
  return together < all.size() ? together : 0;
}

bool AlikeMicrobatches(const plan::Plan& plan) {
  return std::all_of(plan.forward_groups.begin(), plan.forward_groups.end(),
                     [](const plan::LayerGroup& group) { return group.devices.size() == 1; }) &&
         std::all_of(plan.backward_groups.begin(), plan.backward_groups.end(),
                     [](const plan::LayerGroup& group) {
                       return group.devices.size() == 1 && group.gradient_parts == 1;
                     });
}

int SampleOfMicrobatches(const plan::Plan& plan) {
  constexpr int kMany = 2048, kLeast = 512, kPart = 16, kLeastTasks = 4;
  const int all = plan.num_microbatches, task_microbatches = plan.microbatches_per_forward_task;
  if (all <= kMany || !AlikeMicrobatches(plan)) return all;
  const int unit = 2 * std::lcm(task_microbatches, plan.replicas);
  const int wanted = std::max({kLeast, all / kPart, kLeastTasks * task_microbatches});
  const int sample = (wanted + unit - 1) / unit * unit;
  return sample < all / 2 ? sample : all;
}

}  // namespace harmony::planner
