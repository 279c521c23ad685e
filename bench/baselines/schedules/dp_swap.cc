// dp-swap: data parallelism on devices with virtualised memory.
//
// Every device trains the whole model on its share of the batch, microbatch after microbatch, and
// adds up gradients. All its tensors (weights, gradients, moments, activations) live in a memory
// larger than the device's: those that are not used go to the host, the least recently used first,
// and come back when they are. Gradients are reduced over the devices layer by layer while the last
// microbatch's backward runs; then each device updates its copy of the model, layer by layer in the
// order of the parameters.
//
// Sources: Li et al., "Harmony" (VLDB 2022), whose baseline this is; Le et al., "TFLMS" (arXiv
// 1807.02037), and IBM's Large Model Support (LMS) for PyTorch, for memory that is virtualised so;
// Li et al., "PyTorch Distributed" (VLDB 2020), section 3.2 (gradients are reduced while the
// backward runs).
//
// Dirty tensors are written back when the page-in comes that needs the room, or ahead, as soon as
// they are made and the link is idle: whichever is faster.
//
// In its favour: clean tensors are dropped, where LMS for PyTorch gives up the host's copy when it
// brings a tensor in, and so writes every evicted one back; it brings a tensor in when an operator
// asks for it, here that is done some tasks ahead; a device's update takes no time; a ring reduces
// at the full speed of each device's link to its peers; what is written back ahead is known, where
// LMS for PyTorch predicts it, and writes it once it has been used and not when it has been made.

#include "bench/baselines/schedules/schedule.h"

namespace harmony::baselines {
namespace {

void ReduceLayer(int layer, const std::vector<Operation>& backward, Simulation* simulation) {
  const int64_t devices = simulation->costs.num_devices();
  if (devices == 1) return;
  for (DeviceProgram& device : simulation->devices) {
    for (int block : device.blocks()) {
      if (device.CompletesGradient(block) != layer) continue;
      const Bytes whole =
          simulation->costs.model().blocks[static_cast<size_t>(block)].gradient_bytes;
      device.Reduce(block, Bytes(2 * (devices - 1) * whole.count() / devices), backward);
    }
  }
}

}  // namespace

void DpSwap(const Setting& setting, Simulation* simulation) {
  for (int d = 0; d < simulation->costs.num_devices(); ++d) {
    simulation->AddDevice(simulation->all_layers(),
                          {.recompute = setting.recompute, .paging = setting.paging});
  }
  for (int step = 0; step < setting.steps; ++step) {
    simulation->timeline.BeginStep();
    DataParallelStep(setting, step, simulation, ReduceLayer);
    for (DeviceProgram& device : simulation->devices) {
      for (int block : device.blocks()) device.Update(block);
    }
  }
}

}  // namespace harmony::baselines
