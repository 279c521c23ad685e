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
// In its favour: as of dp-swap; a tensor that arrives from another device takes room from the task
// on that reads it, not before.
//
// Against it: as of dp-swap. With recompute each layer's input waits, for all microbatches, and one
// layer is recomputed at a time. GPipe keeps only the stage's input of each microbatch and
// recomputes the stage, for which it needs room for all that its layers save of one microbatch. The
// rule here needs less with few microbatches and more with many: then this is weaker than GPipe.
// torchgpipe does not recompute the last microbatch by default; here all are.

#include "bench/baselines/schedules/schedule.h"

namespace harmony::baselines {

void GpipeSwap(const Setting& setting, Simulation* simulation) {
  const std::vector<model::LayerRange> stages =
      BalancedStages(simulation->costs, setting.recompute);
  std::vector<StageOrder> orders(stages.size());
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    simulation->AddDevice(stages[stage],
                          {.recompute = setting.recompute, .lookahead = setting.lookahead});
    for (int step = 0; step < setting.steps; ++step) {
      for (int m = 0; m < setting.microbatches; ++m) {
        orders[stage].tasks.push_back({true, step, m});
      }
      for (int m = setting.microbatches - 1; m >= 0; --m) {
        orders[stage].tasks.push_back({false, step, m});
      }
    }
  }
  RunPipeline(orders, setting.microbatches, /*weight_versions=*/1, simulation);
}

}  // namespace harmony::baselines
