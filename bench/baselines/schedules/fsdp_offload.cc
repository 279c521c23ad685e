// fsdp-offload: fully sharded data parallelism with its shards on the host.
//
// Each layer is a unit. Its weights are divided among the devices, whose shares lie on the host.
// Before a unit runs, forward or backward, each device loads its share, and the devices gather
// them; afterwards the whole is freed (reshard after forward). While a unit runs, the next one is
// loaded. Gradients are reduced and divided as the backward makes them, and each share goes to the
// host, whose optimizer runs when the backward has ended. Activations stay on the device.
//
// Source: Zhao et al., "PyTorch FSDP" (VLDB 2023), sections 3.2 (units, resharding), 3.3 (overlap,
// forward and backward prefetch, accumulation of gradients) and the documented behaviour of
// CPUOffload(offload_params=True): gradients go to the host, too, and the optimizer runs there.
//
// In its favour: the host adds up in no time, the update runs at the whole host's speed, gradients
// leave once a step where there is room for a device's share, as of zero-offload; both prefetches
// are on; weights that a backward does not read are not loaded for it.
//
// Against it: gradients are reduced for each microbatch. FSDP can also add them up whole and reduce
// them once a step (no_sync), which needs room for all gradients and saves the devices' links; with
// offload the first FSDP knew no other way. Its root unit keeps its weights from forward to
// backward; here each layer loads them again, the last one apart. Keeping all weights from forward
// to backward (SHARD_GRAD_OP) is not tried. Activations stay on the device, though PyTorch can put
// them on the host by means that are not FSDP's.

#include "bench/baselines/schedules/schedule.h"

namespace harmony::baselines {

void FsdpOffload(const Setting& setting, Simulation* simulation) {
  const LayerCosts& costs = simulation->costs;
  for (int d = 0; d < costs.num_devices(); ++d) {
    simulation->AddDevice(
        simulation->all_layers(),
        {.weights = WeightPolicy::kDropped,
         .gradients = setting.gradients_leave_once ? GradientPolicy::kLeaveOnce
                                                   : GradientPolicy::kLeaveEachTime,
         .recompute = setting.recompute,
         .evictable_activations = false,
         .shards = costs.num_devices()});
  }
  simulation->host = HostOptimizerBytes(costs);
  for (int step = 0; step < setting.steps; ++step) {
    simulation->timeline.BeginStep();
    DataParallelStep(setting, step, simulation, nullptr);
    const std::vector<Operation> updates = HostUpdates(simulation);
    for (DeviceProgram& device : simulation->devices) {
      for (int block : device.blocks()) {
        device.Updated(block, updates[static_cast<size_t>(block)]);
      }
    }
  }
}

}  // namespace harmony::baselines
