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

std::vector<Operation> HostUpdates(Simulation* simulation) {
  const command::Lane host{command::LaneKind::kHostCompute, 0};
  const LayerCosts& costs = simulation->costs;
  std::vector<Operation> gradients, updates;
  for (const DeviceProgram& device : simulation->devices) {
    for (int block : device.blocks()) gradients.push_back(device.GradientOut(block));
  }
  simulation->timeline.Add(host, Nanos(), gradients);
  for (size_t block = 0; block < costs.model().blocks.size(); ++block) {
    updates.push_back(simulation->timeline.Add(host, costs.Update(static_cast<int>(block)), {}));
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

void RunWithHostOptimizer(const Setting& setting, DevicePolicy policy, bool delayed,
                          Simulation* simulation) {
  const LayerCosts& costs = simulation->costs;
  policy.gradients = setting.gradients;
  policy.recompute = setting.recompute;
  policy.shards = costs.num_devices();
  for (int d = 0; d < costs.num_devices(); ++d) {
    simulation->AddDevice(simulation->all_layers(), policy);
  }
  simulation->host = HostOptimizerBytes(costs);
  std::vector<Operation> before;
  for (int step = 0; step < setting.steps; ++step) {
    simulation->timeline.BeginStep();
    DataParallelStep(setting, step, simulation, nullptr);
    std::vector<Operation> updates = HostUpdates(simulation);
    const std::vector<Operation>& used = delayed ? before : updates;
    for (size_t block = 0; block < used.size(); ++block) {
      for (DeviceProgram& device : simulation->devices) {
        device.Updated(static_cast<int>(block), used[block]);
      }
    }
    before = std::move(updates);
  }
}

}  // namespace harmony::baselines
