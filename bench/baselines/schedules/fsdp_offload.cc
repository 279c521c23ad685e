// fsdp-offload: fully sharded data parallelism with its shards on the host.
//
// Each layer is a unit. Its weights are divided among the devices, whose shares lie on the host.
// Before a unit runs, forward or backward, each device loads its share, and the devices gather
// them; while a unit runs, the next ones are loaded. When the whole is freed is tuned: after the
// forward and again after the backward (FULL_SHARD, reshard after forward), or only after the last
// microbatch's backward (SHARD_GRAD_OP; FSDP2: set_reshard_after_backward), which needs room for
// all weights.
//
// Where gradients are added up is tuned, too:
// - each microbatch's are reduced and divided as the backward makes them, and the shares are added
//   up on the device and leave once a step, or are sent to the host each time where a share of all
//   finds no room;
// - they are added up whole and reduced in the last microbatch alone (no_sync), which needs room
//   for all gradients.
// Activations stay on the device. The host's optimizer runs when the backward has ended.
//
// Sources: Zhao et al., "PyTorch FSDP" (VLDB 2023), sections 3.2 (units, resharding), 3.3 (overlap,
// forward and backward prefetch, accumulation of gradients with and without communication);
// PyTorch's documentation of ShardingStrategy, of no_sync (FSDP2: set_requires_gradient_sync), and
// of CPUOffload(offload_params=True): gradients go to the host, too, and the optimizer runs there.
// With offload the first FSDP accumulates inside no_sync only.
//
// In its favour: the host adds up in no time, the update runs at the whole host's speed; shares of
// gradients leave once a step where there is room for them, where FSDP2 sends each microbatch's;
// both prefetches are on, of three units; gathers and reductions have a stream each; weights that a
// backward does not read are not loaded for it; what a reduction makes takes no room beside the
// gradients.
//
// Against it: with FULL_SHARD its root unit keeps its weights from forward to backward; here each
// layer loads them again, the last one apart. Activations stay on the device, though PyTorch can
// put them on the host by means that are not FSDP's.

#include "bench/baselines/schedules/schedule.h"

namespace harmony::baselines {

namespace {

// Units that are loaded and gathered ahead. FSDP2's implicit prefetch is one; more are set by hand
// (set_modules_to_forward_prefetch and its like for the backward).
constexpr int kUnitsAhead = 3;

}  // namespace

void FsdpOffload(const Setting& setting, Simulation* simulation) {
  const WeightPolicy weights =
      setting.reshards_after_forward ? WeightPolicy::kDropped : WeightPolicy::kGathered;
  RunWithHostOptimizer(setting,
                       {.weights = weights,
                        .evictable_activations = false,
                        .evictable_saved = false,
                        .paging = {.lookahead = kUnitsAhead}},
                       HostUpdate::kAfterBackward, simulation);
}

}  // namespace harmony::baselines
