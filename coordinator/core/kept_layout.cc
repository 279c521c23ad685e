#include "coordinator/core/kept_layout.h"

#include <algorithm>
#include <utility>

#include "common/model/model_sizes.h"

namespace harmony {

KeptLayout::KeptLayout(const ModelSpec& model, const Plan& plan)
    : share_microbatches_(plan.share_microbatches()), bytes_(plan.devices.size()) {
  for (int share = 0; share < plan.num_shares(); ++share) AddShare(model, plan, share);
}

void KeptLayout::AddShare(const ModelSpec& model, const Plan& plan, int number) {
  Share share;
  share.weights.resize(plan.backward_groups.size());
  share.stashes.resize(model.num_layers() + 1);
  share.activations.resize(plan.backward_groups.size());
  const auto take = [&](int device, Bytes size) {
    const Bytes resident(plan.devices[device].resident.count() / kSlotAlignment * kSlotAlignment);
    bytes_[device] += size.AlignUp(kSlotAlignment);
    return resident - bytes_[device];
  };
  for (size_t g = 0; g < plan.backward_groups.size(); ++g) {
    const LayerGroup& group = plan.backward_groups[g];
    const int device = DeviceOf(plan, group, number);
    if (group.keep_activations) {
      const Bytes stride =
          KeptActivationBytes(model, group.layers, plan.microbatch_size).AlignUp(kSlotAlignment);
      share.activations[g] = {device, take(device, stride * share_microbatches_), stride};
    }
    if (!group.keep_weights) continue;
    for (int block : BlocksOf(model, group.layers, true)) {
      share.weights[g].emplace_back(block, take(device, model.blocks[block].weight_bytes));
    }
  }
  for (const StashSpec& stash : StashesOf(plan)) {
    if (!stash.kept) continue;
    const int device = DeviceOf(plan, plan.backward_groups[stash.group], number);
    const Bytes stride =
        BoundaryBytes(model, stash.boundary, plan.microbatch_size).AlignUp(kSlotAlignment);
    share.stashes[stash.boundary] = {device, take(device, stride * share_microbatches_), stride};
  }
  shares_.push_back(std::move(share));
}

Bytes KeptLayout::Weights(int group, int share, int block) const {
  const auto& blocks = of_share(share).weights[group];
  return std::find_if(blocks.begin(), blocks.end(),
                      [block](const auto& b) { return b.first == block; })
      ->second;
}

}  // namespace harmony
