// zero-offload: weights on every device, gradients and optimizer on the host.
//
// Every device holds all weights and trains its share of the batch. Gradients are divided among the
// devices as the backward makes them, and each device sends its share to the host; they never need
// room for the whole model. When the backward has ended, the host updates; as soon as a layer is
// updated, each device gets its share of the new weights, and the devices gather them. With
// `delayed` (zero-offload-dpu) the host updates while the devices run the next step, which so works
// with weights that are one step old: that is no longer plain synchronous training.
//
// Source: Ren et al., "ZeRO-Offload" (USENIX ATC 2021), section 4.1 (one device), and without a
// section that we could check: several devices, the host's Adam in tiles, overlapped with the copy
// back, and the one-step delayed parameter update. DeepSpeed's configuration has no option for the
// latter: that variant is the paper's, which trains some steps without delay first.
//
// In its favour: where a device has room for its share of the gradients, they leave once a step, as
// if it could add them up there, where DeepSpeed sends each microbatch's; with recompute or
// without, whichever is faster; the host adds up what it gets in no time, where DeepSpeed brings
// the sum back to the device to add to it; updates of all devices' shares run at the whole host's
// speed; a layer's next forward waits for its own weights, not for all.
//
// Against it: inputs of layers that wait for their backward stay on the device, as in the paper;
// DeepSpeed can put activation checkpoints on the host (cpu_checkpointing) here, too.

#include "bench/baselines/schedules/schedule.h"

namespace harmony::baselines {
namespace {

void Run(const Setting& setting, bool delayed, Simulation* simulation) {
  const LayerCosts& costs = simulation->costs;
  for (int d = 0; d < costs.num_devices(); ++d) {
    simulation->AddDevice(
        simulation->all_layers(),
        {.weights = WeightPolicy::kResident,
         .gradients = setting.gradients_leave_once ? GradientPolicy::kLeaveOnce
                                                   : GradientPolicy::kLeaveEachTime,
         .recompute = setting.recompute,
         .evictable_activations = false,
         .shards = costs.num_devices()});
  }
  simulation->host = HostOptimizerBytes(costs);
  const auto pass_on = [&](const std::vector<Operation>& updates) {
    for (size_t block = 0; block < updates.size(); ++block) {
      for (DeviceProgram& device : simulation->devices) {
        device.Updated(static_cast<int>(block), updates[block]);
      }
    }
  };
  std::vector<Operation> before;
  for (int step = 0; step < setting.steps; ++step) {
    simulation->timeline.BeginStep();
    DataParallelStep(setting, step, simulation, nullptr);
    const std::vector<Operation> updates = HostUpdates(simulation);
    pass_on(delayed ? before : updates);
    before = updates;
  }
}

}  // namespace

void ZeroOffload(const Setting& setting, Simulation* simulation) {
  Run(setting, /*delayed=*/false, simulation);
}

void ZeroOffloadDelayed(const Setting& setting, Simulation* simulation) {
  Run(setting, /*delayed=*/true, simulation);
}

}  // namespace harmony::baselines
