// zero-infinity: weights streamed from the host, layer by layer, for each microbatch.
//
// Weights, gradients and optimizer state lie on the host, divided among the devices. Before a layer
// runs, forward or backward, each device loads its share of the layer's weights over its own link,
// and the devices gather them; while a layer runs, the next ones are loaded. What is left of device
// memory keeps weights that will be used again (DeepSpeed's live parameters): here all that is
// left, the least recently used leave first. With recompute, inputs of layers that wait for their
// backward (activation checkpoints) go to the host where there is no room. Gradients are reduced
// and divided as the backward makes them and go to the host, which updates when the backward has
// ended.
//
// Source: Rajbhandari et al., "ZeRO-Infinity" (SC 2021), sections 5.1.1 (offload of parameters,
// gradients and optimizer state to the host), 5.1.2 (offload of activations), 6.1
// (bandwidth-centric partitioning) and 6.2 (overlap-centric design, dynamic prefetcher). NVMe is
// not used: all is in host memory, which is faster.
//
// In its favour: as of zero-offload; memory-centric tiling of a single operator is left out (a
// layer that does not fit is said not to fit).

#include "bench/baselines/schedules/schedule.h"

namespace harmony::baselines {
namespace {

// The paper's prefetcher traces the sequence of operators and loads the next ones while this one
// computes; three ahead hide a layer's latency, and more find no room where it matters.
constexpr int kLayersAhead = 3;

}  // namespace

void ZeroInfinity(const Setting& setting, Simulation* simulation) {
  const LayerCosts& costs = simulation->costs;
  for (int d = 0; d < costs.num_devices(); ++d) {
    simulation->AddDevice(
        simulation->all_layers(),
        {.weights = WeightPolicy::kStreamed,
         .gradients = setting.gradients_leave_once ? GradientPolicy::kLeaveOnce
                                                   : GradientPolicy::kLeaveEachTime,
         .recompute = setting.recompute,
         // Checkpoints of activations are offloaded, not what autograd saves where there are none.
         .evictable_activations = setting.recompute,
         .lookahead = kLayersAhead,
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
