#include "coordinator/dispatch/memory/kept_layout.h"

#include <algorithm>
#include <utility>

#include "common/model/model_sizes.h"

namespace harmony::dispatch {

Bytes KeptLayout::Take(const plan::Plan& plan, int device, Bytes size) {
  const Bytes resident(plan.devices[device].resident.count() / kSlotAlignment * kSlotAlignment);
  bytes_[device] += size.AlignUp(kSlotAlignment);
  return resident - bytes_[device];
}

KeptLayout::Places KeptLayout::TakePlaces(const plan::Plan& plan, const plan::LayerGroup& group,
                                          Bytes stride) {
  Places places;
  for (int i = 0; i < group.devices.num_shards(); ++i) {
    const plan::Shard shard = plan::ShardOf(plan, group, i);
    places.push_back({shard, Take(plan, shard.device, stride * shard.count), stride});
  }
  return places;
}

KeptLayout::KeptLayout(const model::ModelSpec& model, const plan::Plan& plan)
    : bytes_(plan.devices.size()),
      stashes_(model.num_layers() + 1),
      activations_(plan.backward_groups.size()),
      weights_(plan.backward_groups.size()) {
  for (size_t g = 0; g < plan.backward_groups.size(); ++g) {
    const plan::LayerGroup& group = plan.backward_groups[g];
    if (group.keep_activations) {
      activations_[g] =
          TakePlaces(plan, group,
                     model::KeptActivationBytes(model, group.layers, plan.microbatch_size)
                         .AlignUp(kSlotAlignment));
    }
    if (!group.keep_weights) continue;
    for (int i = 0; i < group.devices.num_shards(); ++i) {
      BlockPlaces& places = weights_[g].emplace_back();
      const int device = plan::ShardOf(plan, group, i).device;
      for (int block : plan::BlocksOf(model, group.layers, true)) {
        places.emplace_back(block, Take(plan, device, model.blocks[block].weight_bytes));
      }
    }
  }
  for (const plan::StashSpec& stash : plan::StashesOf(plan)) {
    if (!stash.kept) continue;
    const Bytes stride =
        model::BoundaryBytes(model, stash.boundary, plan.microbatch_size).AlignUp(kSlotAlignment);
    stashes_[stash.boundary] = TakePlaces(plan, plan.backward_groups[stash.group], stride);
  }
}

Bytes KeptLayout::Weights(int group, int shard, int block) const {
  const BlockPlaces& blocks = weights_[static_cast<size_t>(group)][static_cast<size_t>(shard)];
  return std::find_if(blocks.begin(), blocks.end(),
                      [block](const auto& b) { return b.first == block; })
      ->second;
}

}  // namespace harmony::dispatch
