// 1f1b-swap: a pipeline without a flush, on devices with virtualised memory.
//
// Stages as in gpipe-swap. Stage s of n runs n - s - 1 forwards ahead, then one backward for each
// forward, over the ends of steps: the pipeline never drains, so a device keeps two versions of its
// weights. The microbatches of a step work with weights that lack the update of the step before,
// and that step's own update goes into the version which its microbatches have done with: gradients
// are of weights that are one step old, which is no longer plain synchronous training. Memory is
// virtualised as in dp-swap.
//
// Sources: Narayanan et al., "PipeDream" (SOSP 2019), for 1F1B, and "Memory-Efficient
// Pipeline-Parallel DNN Training" (ICML 2021), section 3.1 (double-buffered weight updates,
// PipeDream-2BW).
//
// Recompute, whichever of two is faster: of the whole stage (of a microbatch only the stage's input
// waits, the "input activations" of PipeDream-2BW), or layer by layer, as in gpipe-swap. With the
// first the last stage recomputes nothing: each of its backwards comes next after the forward.
//
// In its favour: as of gpipe-swap.
//
// Against it: as of dp-swap. Stages are not replicated, where both papers choose how many devices
// share a stage. The variant with a flush (PipeDream-Flush) is left out: it has the same tasks, one
// version less, and a bubble at the end of each step. It is synchronous, and where two versions
// make a device swap and one does not, it may be faster than this and than gpipe-swap.

#include <algorithm>

#include "bench/baselines/schedules/schedule.h"

namespace harmony::baselines {

void OneForwardOneBackwardSwap(const Setting& setting, Simulation* simulation) {
  const std::vector<model::LayerRange> stages =
      BalancedStages(simulation->costs, setting.recompute, /*last_keeps=*/true);
  // Two versions are for microbatches in flight; a pipeline of one stage has none.
  const int versions = stages.size() > 1 ? 2 : 1;
  // A step more than is looked at: the last one drains the pipeline.
  const int total = (setting.steps + 1) * setting.microbatches;
  std::vector<StageOrder> orders(stages.size());
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    simulation->AddDevice(stages[stage], {.recompute = setting.recompute,
                                          .lookahead = setting.lookahead,
                                          .weight_versions = versions});
    // More microbatches in flight than a step has would need a third version.
    const int ahead = std::min(static_cast<int>(stages.size() - stage) - 1, setting.microbatches);
    const auto add = [&](bool forward, int index) {
      orders[stage].tasks.push_back(
          {forward, index / setting.microbatches, index % setting.microbatches});
    };
    for (int index = 0; index < total + ahead; ++index) {
      if (index < total) add(true, index);
      if (index >= ahead) add(false, index - ahead);
    }
  }
  RunPipeline(orders, setting.microbatches, versions, simulation);
}

}  // namespace harmony::baselines
