// What data-parallel schedules share.

#include <utility>

#include "bench/baselines/schedules/schedule.h"
#include "common/job/job_spec.h"

namespace harmony::baselines {
namespace {

Bytes HostOptimizerBytes(const LayerCosts& costs) {
  Bytes sum;
  for (const model::ParamBlock& block : costs.model().blocks) {
    sum += block.weight_bytes + block.master_bytes() + block.gradient_bytes +
           block.moment_bytes * job::MomentsOf(costs.job());
  }
  return sum;
}

// Of each block; in the order of the blocks, or, where the host does not wait for all gradients, in
// that in which a backward makes them.
std::vector<Operation> HostUpdates(bool after_all, Simulation* simulation) {
  const command::Lane host{command::LaneKind::kHostCompute, 0};
  const LayerCosts& costs = simulation->costs;
  const auto gradients_of = [&](int block, std::vector<Operation>* gradients) {
    for (const DeviceProgram& device : simulation->devices) {
      gradients->push_back(device.GradientOut(block));
    }
  };
  const auto blocks = static_cast<int>(costs.model().blocks.size());
  std::vector<Operation> updates(static_cast<size_t>(blocks), kNoOperation), all;
  if (after_all) {
    for (int block = 0; block < blocks; ++block) gradients_of(block, &all);
    simulation->timeline.Add(host, Nanos(), all);
  }
  for (int i = 0; i < blocks; ++i) {
    const int block = after_all ? i : blocks - 1 - i;
    std::vector<Operation> own;
    if (!after_all) gradients_of(block, &own);
    updates[static_cast<size_t>(block)] = simulation->timeline.Add(host, costs.Update(block), own);
  }
  return updates;
}

}  // namespace

void DataParallelStep(const Setting& setting, int step, Simulation* simulation,
                      void (*after_layer)(int layer, const std::vector<Operation>& backward,
                                          Simulation* simulation)) {
  const int head = simulation->costs.num_layers() - 1;
  for (int m = 0; m < setting.microbatches; ++m) {
    const int id = step * setting.microbatches + m;
    const bool first = m == 0, last = m + 1 == setting.microbatches;
    for (DeviceProgram& device : simulation->devices) {
      for (int layer = 0; layer < head; ++layer) device.Forward(id, layer);
    }
    for (int layer = head; layer >= 0; --layer) {
      std::vector<Operation> backward;
      for (DeviceProgram& device : simulation->devices) {
        backward.push_back(device.Backward(id, layer, first, last));
      }
      if (last && after_layer != nullptr) after_layer(layer, backward, simulation);
    }
  }
}

void RunWithHostOptimizer(const Setting& setting, DevicePolicy policy, HostUpdate update,
                          Simulation* simulation) {
  const LayerCosts& costs = simulation->costs;
  policy.gradients = setting.gradients;
  policy.recompute = setting.recompute;
  policy.recomputed_quarters = setting.recomputed_quarters;
  policy.shards = costs.num_devices();
  for (int d = 0; d < costs.num_devices(); ++d) {
    simulation->AddDevice(simulation->all_layers(), policy);
  }
  simulation->host = HostOptimizerBytes(costs);
  const bool after_all = update != HostUpdate::kInBackward || costs.job().max_grad_norm > 0;
  std::vector<Operation> before;
  for (int step = 0; step < setting.steps; ++step) {
    simulation->timeline.BeginStep();
    DataParallelStep(setting, step, simulation, nullptr);
    std::vector<Operation> updates = HostUpdates(after_all, simulation);
    const std::vector<Operation>& used = update == HostUpdate::kDelayed ? before : updates;
    for (size_t block = 0; block < used.size(); ++block) {
      for (DeviceProgram& device : simulation->devices) {
        device.Updated(static_cast<int>(block), used[block]);
      }
    }
    before = std::move(updates);
  }
}

}  // namespace harmony::baselines
