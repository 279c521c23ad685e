// 1f1b-swap and 1f1b-flush-swap: pipelines that alternate forwards and backwards, on devices with
// virtualised memory.
//
// Stages as in gpipe-swap, or fewer of them than devices, several of which then share a stage: they
// take its microbatches in turn, and reduce their gradients at the end of a step, layer by layer as
// the last backward makes them. How many stages there are is tuned; which devices have which is the
// dynamic programme's (stages.cc). Of d devices that have this stage and later ones, r this one,
// each runs (d - 1) / r forwards ahead, rounded down, then one backward for each forward. Without
// replicas stage s of n runs n - s - 1 ahead, so that at most n - s microbatches wait at once.
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
// Sources: Narayanan et al., "PipeDream" (SOSP 2019), for 1F1B, and its planner and runtime for
// replicated stages; "Memory-Efficient Pipeline-Parallel DNN Training" (ICML 2021), section 3.1
// (double-buffered weight updates, PipeDream-2BW) and PipeDream-Flush; Megatron-LM, whose schedule
// without interleaving is the latter.
//
// In favour of both: as of gpipe-swap; gradients of blocks that others have, too, do not keep a
// device from adding up the next step's.
//
// Against both: one stage on all devices is not tried, for that is dp-swap. An update waits for the
// gradients of all replicas, and what comes after it on its device with it, though weights of the
// step before would let a forward run. Of Megatron's schedules the interleaved one, in which a
// device has several stages (fill and drain take less, more goes over the links), is left out; the
// pipeline without a flush has no fill and drain. Megatron can recompute some of a stage's layers;
// here it is all or none. Stages are balanced by time alone, where PipeDream's planner can mind
// memory, too.

#include <algorithm>

#include "bench/baselines/schedules/schedule.h"

namespace harmony::baselines {
namespace {

// One of the devices that share a stage: forwards and backwards of its microbatches of [begin,
// end), counted over all steps. A forward runs before the backward of a microbatch up to `ahead`
// earlier.
struct Alternation {
  int ahead, replica, replicas, microbatches;

  bool Has(int index) const { return index % microbatches % replicas == replica; }
  void Add(int begin, int end, DeviceOrder* order) const {
    const auto add = [&](bool forward, int index) {
      order->push_back({forward, index / microbatches, index % microbatches});
    };
    int next = begin;
    for (int index = begin; index < end; ++index) {
      if (!Has(index)) continue;
      for (; next < end && next <= index + ahead; ++next) {
        if (Has(next)) add(true, next);
      }
      add(false, index);
    }
  }
};

void Run(const Setting& setting, bool flush, Simulation* simulation) {
  const std::vector<Stage> stages =
      BalancedStages(simulation->costs, {.stages = setting.stages,
                                         // Each replica has a microbatch of each step.
                                         .replicas = setting.stages > 0 ? setting.microbatches : 1,
                                         .recompute = setting.recompute,
                                         .last_keeps = true});
  // Two versions are for microbatches in flight; a pipeline of one stage has none.
  const int versions = stages.size() > 1 && !flush ? 2 : 1;
  // Without a flush, a step more than is looked at: the last one drains the pipeline.
  const int total = (setting.steps + (flush ? 0 : 1)) * setting.microbatches;
  const int at_once = flush ? setting.microbatches : total;
  const int devices = stages.back().first_device + stages.back().replicas;
  std::vector<DeviceOrder> orders;
  for (const Stage& stage : stages) {
    const int others = (devices - stage.first_device - 1) / stage.replicas;
    // More microbatches in flight than a step has would need a third version.
    const int ahead = std::min(others * stage.replicas, setting.microbatches);
    for (int replica = 0; replica < stage.replicas; ++replica) {
      simulation->AddDevice(
          stage.layers,
          {.recompute = setting.recompute, .paging = setting.paging, .weight_versions = versions});
      const Alternation alternation{ahead, replica, stage.replicas, setting.microbatches};
      DeviceOrder& order = orders.emplace_back();
      for (int begin = 0; begin < total; begin += at_once) {
        alternation.Add(begin, begin + at_once, &order);
      }
    }
  }
  RunPipeline(stages, orders, setting.microbatches, versions, simulation);
}

}  // namespace

void OneForwardOneBackwardSwap(const Setting& setting, Simulation* simulation) {
  Run(setting, /*flush=*/false, simulation);
}

void OneForwardOneBackwardFlushSwap(const Setting& setting, Simulation* simulation) {
  Run(setting, /*flush=*/true, simulation);
}

}  // namespace harmony::baselines
