// 1f1b-swap and 1f1b-flush-swap: pipelines that alternate forwards and backwards, on devices with
// virtualised memory.
//
// Stages as in gpipe-swap. Stage s of n runs n - s - 1 forwards ahead, then one backward for each
// forward, so that at most n - s microbatches wait at once.
//
// 1f1b-swap goes on so over the ends of steps: the pipeline never drains, so a device keeps two
// versions of its weights. The microbatches of a step work with weights that lack the update of the
// step before, and that step's own update goes into the version which its microbatches have done
// with: gradients are of weights that are one step old, which is no longer plain synchronous
// training.
//
// 1f1b-flush-swap drains the pipeline at the end of each step, and updates then: one version of the
// weights, plain synchronous training, and the bubble of GPipe with fewer microbatches that wait.
//
// Recompute, whichever of two is faster: of the whole stage (of a microbatch only the stage's input
// waits, the "input activations" of PipeDream-2BW), or layer by layer, as in gpipe-swap. With the
// first the last stage recomputes nothing: each of its backwards comes next after the forward.
//
// Sources: Narayanan et al., "PipeDream" (SOSP 2019), for 1F1B; "Memory-Efficient Pipeline-Parallel
// DNN Training" (ICML 2021), section 3.1 (double-buffered weight updates, PipeDream-2BW) and
// PipeDream-Flush; Megatron-LM, whose schedule without interleaving is the latter.
//
// In favour of both: as of gpipe-swap.
//
// Against both: stages are not replicated, where both papers choose how many devices
// share a stage. Of Megatron's schedules the interleaved one, in which a device has several stages
// (fill and drain take less, more goes over the links), is left out; the pipeline without a flush
// has no fill and drain at all.

#include <algorithm>

#include "bench/baselines/schedules/schedule.h"

namespace harmony::baselines {
namespace {

// Forwards and backwards of the microbatches [begin, end), counted over all steps, one backward for
// each forward but for `ahead` forwards at the beginning.
void Alternate(int begin, int end, int ahead, int microbatches, StageOrder* order) {
  const auto add = [&](bool forward, int index) {
    order->tasks.push_back({forward, index / microbatches, index % microbatches});
  };
  for (int index = begin; index < end + ahead; ++index) {
    if (index < end) add(true, index);
    if (index - ahead >= begin) add(false, index - ahead);
  }
}

void Run(const Setting& setting, bool flush, Simulation* simulation) {
  const std::vector<model::LayerRange> stages =
      BalancedStages(simulation->costs, setting.recompute, /*last_keeps=*/true);
  // Two versions are for microbatches in flight; a pipeline of one stage has none.
  const int versions = stages.size() > 1 && !flush ? 2 : 1;
  // Without a flush, a step more than is looked at: the last one drains the pipeline.
  const int total = (setting.steps + (flush ? 0 : 1)) * setting.microbatches;
  std::vector<StageOrder> orders(stages.size());
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    simulation->AddDevice(
        stages[stage],
        {.recompute = setting.recompute, .paging = setting.paging, .weight_versions = versions});
    // More microbatches in flight than a step has would need a third version.
    const int ahead = std::min(static_cast<int>(stages.size() - stage) - 1, setting.microbatches);
    const int at_once = flush ? setting.microbatches : total;
    for (int begin = 0; begin < total; begin += at_once) {
      Alternate(begin, begin + at_once, ahead, setting.microbatches, &orders[stage]);
    }
  }
  RunPipeline(orders, setting.microbatches, versions, simulation);
}

}  // namespace

void OneForwardOneBackwardSwap(const Setting& setting, Simulation* simulation) {
  Run(setting, /*flush=*/false, simulation);
}

void OneForwardOneBackwardFlushSwap(const Setting& setting, Simulation* simulation) {
  Run(setting, /*flush=*/true, simulation);
}

}  // namespace harmony::baselines
