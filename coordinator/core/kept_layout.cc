#include "coordinator/core/kept_layout.h"

#include <algorithm>

namespace harmony {

KeptLayout::KeptLayout(const ModelSpec& model, const Plan& plan)
    : bytes_(plan.devices.size()),
      weights_(plan.backward_groups.size()),
      stashes_(model.num_layers() + 1),
      activations_(plan.backward_groups.size()) {
  auto take = [&](int device, Bytes size) {
    const Bytes resident(plan.devices[device].resident.count() / kSlotAlignment * kSlotAlignment);
    bytes_[device] += size.AlignUp(kSlotAlignment);
    return resident - bytes_[device];
  };
  for (size_t g = 0; g < plan.backward_groups.size(); ++g) {
    const LayerGroup& group = plan.backward_groups[g];
    if (group.keep_activations) {
      const Bytes stride =
          KeptActivationBytes(model, group.layers, plan.microbatch_size, plan.sequence_length)
              .AlignUp(kSlotAlignment);
      activations_[g] = {take(group.device, stride * plan.num_microbatches), stride};
    }
    if (!group.keep_weights) continue;
    for (int block : BlocksOf(model, group.layers, true)) {
      weights_[g].emplace_back(block, take(group.device, model.blocks[block].size()));
    }
  }
  for (const StashSpec& stash : StashesOf(plan)) {
    if (stash.kept_on < 0) continue;
    const Bytes stride =
        BoundaryBytes(model, stash.boundary, plan.microbatch_size, plan.sequence_length)
            .AlignUp(kSlotAlignment);
    stashes_[stash.boundary] = {stash.kept_on, take(stash.kept_on, stride * plan.num_microbatches),
                                stride};
  }
}

Bytes KeptLayout::Weights(int group, int block) const {
  const auto& blocks = weights_[group];
  return std::find_if(blocks.begin(), blocks.end(),
                      [block](const auto& b) { return b.first == block; })
      ->second;
}

}  // namespace harmony
