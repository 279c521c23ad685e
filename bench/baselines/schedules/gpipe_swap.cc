// gpipe-swap: a pipeline with a flush, on devices with virtualised memory.
//
// The layers are cut into as many stages as there are devices, balanced by time; a device has its
// stage's weights, gradients and moments. All microbatches of a step go forward through the
// pipeline, then all come back, the last one first; then each device updates its stage. So there is
// one version of the weights, and the activations of all microbatches wait at once. Memory is
// virtualised as in dp-swap.
//
// Sources: Huang et al., "GPipe" (NeurIPS 2019), sections 2.2 and 2.3 (microbatches, the flush, one
// version, rematerialisation); Li et al., "Harmony" (VLDB 2022), for pipelines whose stages do
// not fit their devices.
//
// Recompute, whichever of two is faster: of the whole stage, as GPipe does it (a stage's input
// waits for each microbatch; before its backward the stage runs forward once more, and all that its
// layers save of that one microbatch is there), or layer by layer (each layer's input waits, for
// all microbatches, and what one layer saves). The first needs less with many microbatches, the
// second with few. With the first the last microbatch is not recomputed, as torchgpipe has it
// ("except_last"): its backward comes next.
//
// In its favour: as of dp-swap; a tensor that arrives from another device takes room from the task
// on that reads it, not before; a stage runs forward once more before the gradient of its output is
// there; the last layer, which has the loss, runs forward once, within its backward.

#include "bench/baselines/schedules/schedule.h"

namespace harmony::baselines {

void GpipeSwap(const Setting& setting, Simulation* simulation) {
  const std::vector<Stage> stages =
      BalancedStages(simulation->costs, {.recompute = setting.recompute});
  std::vector<DeviceOrder> orders(stages.size());
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    simulation->AddDevice(stages[stage].layers,
                          {.recompute = setting.recompute, .paging = setting.paging});
    for (int step = 0; step < setting.steps; ++step) {
      for (int m = 0; m < setting.microbatches; ++m) orders[stage].push_back({true, step, m});
      for (int m = setting.microbatches - 1; m >= 0; --m) orders[stage].push_back({false, step, m});
    }
  }
  RunPipeline(stages, orders, setting.microbatches, /*weight_versions=*/1, simulation);
}

}  // namespace harmony::baselines
