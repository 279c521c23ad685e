// zero-infinity and super-offload: weights streamed from the host, layer by layer, for each
// microbatch.
//
// Weights, gradients and optimizer state lie on the host, divided among the devices. Before a layer
// runs, forward or backward, each device loads its share of the layer's weights over its own link,
// and the devices gather them; while a layer runs, the next ones are loaded. What is left of device
// memory keeps weights that will be used again: here all that is left, the least recently used
// leave first (DeepSpeed keeps what is used again within a distance, stage3_max_reuse_distance, up
// to stage3_max_live_parameters; both count parameters, and a user sets them). With recompute,
// inputs of layers that wait for their backward (activation checkpoints) go to the host where there
// is no room. Gradients are reduced and divided as the backward makes them and go to the host,
// which updates when the backward has ended. Where weights lie is tuned: on the host, or each
// device keeps its share (DeepSpeed's stage 3 with the optimizer alone offloaded), and layers are
// gathered from the devices.
//
// super-offload (DeepSpeed's super_offload) is the same, but the host updates what has its gradient
// while the backward still runs, unless gradients are clipped by their norm.
//
// Source: Rajbhandari et al., "ZeRO-Infinity" (SC 2021), sections 5.1 (offload of parameters,
// gradients and optimizer state to the host; offload of activations), 6.1 (bandwidth-centric
// partitioning) and 6.2 (overlap-centric design, dynamic prefetcher). NVMe is not used: all is in
// host memory, which is faster.
//
// In its favour: as of zero-offload; checkpoints of activations stay on the device where there is
// room.
//
// Against it: memory-centric tiling of a single operator (section 5.1) is left out: a layer that
// does not fit is said not to fit, where tiles of it might. The paper divides an operator's
// parameters; a layer here is many operators, of which a description names no sizes, and is loaded
// whole, where DeepSpeed loads module by module. DeepSpeed can meanwhile keep part of the optimizer
// on the devices (Twin-Flow of ZeRO-Offload++, offload_optimizer's ratio), which is not in the
// paper and not here. Which weights stay is decided by least recent use, which is not the best that
// a known order of layers allows.

#include "bench/baselines/schedules/schedule.h"

namespace harmony::baselines {
namespace {

// The paper's prefetcher traces the sequence of operators. While operator i computes, it gathers
// the weights of i + 1, loads those of i + 2 from the host and reads those of i + 3 from NVMe. Here
// a layer, which is many operators, may be loaded and gathered three layers ahead. DeepSpeed counts
// parameters instead (stage3_prefetch_bucket_size).
constexpr int kLayersAhead = 3;

DevicePolicy Policy(const Setting& setting) {
  return {.weights = setting.weights_on_host ? WeightPolicy::kStreamed : WeightPolicy::kSharded,
          // Checkpoints of activations are offloaded, not what autograd saves where there are none.
          .evictable_activations = setting.recompute != Recompute::kNothing,
          .evictable_saved = false,
          .paging = {.lookahead = kLayersAhead, .writes_back_ahead = true}};
}

}  // namespace

void ZeroInfinity(const Setting& setting, Simulation* simulation) {
  RunWithHostOptimizer(setting, Policy(setting), HostUpdate::kAfterBackward, simulation);
}

void SuperOffload(const Setting& setting, Simulation* simulation) {
  RunWithHostOptimizer(setting, Policy(setting), HostUpdate::kInBackward, simulation);
}

}  // namespace harmony::baselines
