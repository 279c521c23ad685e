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
  RunWithHostOptimizer(setting, {.weights = WeightPolicy::kDropped, .evictable_activations = false},
                       /*delayed=*/false, simulation);
}

}  // namespace harmony::baselines
