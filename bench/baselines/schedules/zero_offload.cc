// zero-offload: weights on every device, gradients and optimizer on the host.
//
// Every device holds all weights and trains its share of the batch. Gradients are divided among the
// devices as the backward makes them (stage 2), and each device sends its share to the host; they
// never need room for the whole model. Or they are added up whole, and reduced and divided once a
// step (stage 1), where there is room. When the backward has ended, the host updates; as soon as a
// layer is updated, each device gets its share of the new weights, and the devices gather them.
// With `delayed` (zero-offload-dpu) the host updates while the devices run the next step, which so
// works with weights that are one step old: that is no longer plain synchronous training.
//
// Source: Ren et al., "ZeRO-Offload" (USENIX ATC 2021), section 4.1 (one device), and without a
// section that we could check: several devices, the host's Adam in tiles, overlapped with the copy
// back, and the one-step delayed parameter update. DeepSpeed's configuration has no option for the
// latter: that variant is the paper's, which trains some steps without delay first.
//
// In its favour: where a device has room for its share of the gradients, they leave once a step, as
// if it could add them up there, where DeepSpeed sends each microbatch's; with recompute or
// without, whichever is faster; the host adds up what it gets in no time, where DeepSpeed brings
// the sum back to the device to add to it; updates of all devices' shares run at the whole host's
// speed; a layer's next forward waits for its own weights, not for all, and gets them as soon as
// they are updated and the layer has been done with, in whatever order that is.
//
// Against it: inputs of layers that wait for their backward stay on the device, as in the paper;
// DeepSpeed can put activation checkpoints on the host (cpu_checkpointing) here, too.

#include "bench/baselines/schedules/schedule.h"

namespace harmony::baselines {
namespace {

constexpr DevicePolicy kResident = {
    .weights = WeightPolicy::kResident, .evictable_activations = false, .evictable_saved = false};

}  // namespace

void ZeroOffload(const Setting& setting, Simulation* simulation) {
  RunWithHostOptimizer(setting, kResident, HostUpdate::kAfterBackward, simulation);
}

void ZeroOffloadDelayed(const Setting& setting, Simulation* simulation) {
  RunWithHostOptimizer(setting, kResident, HostUpdate::kDelayed, simulation);
}

}  // namespace harmony::baselines
