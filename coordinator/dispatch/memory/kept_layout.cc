#include "coordinator/dispatch/memory/kept_layout.h"

#include <algorithm>
#include <utility>

#include "common/model/model_sizes.h"

namespace harmony::dispatch {

KeptLayout::KeptLayout(const model::ModelSpec& model, const plan::Plan& plan)
    : shard_microbatches_(plan.shard_microbatches()), bytes_(plan.devices.size()) {
  for (int shard = 0; shard < plan.num_shards(); ++shard) AddShard(model, plan, shard);
}

void KeptLayout::AddShard(const model::ModelSpec& model, const plan::Plan& plan, int number) {
  Shard shard;
  shard.weights.resize(plan.backward_groups.size());
  shard.stashes.resize(model.num_layers() + 1);
  shard.activations.resize(plan.backward_groups.size());
  const auto take = [&](int device, Bytes size) {
    const Bytes resident(plan.devices[device].resident.count() / kSlotAlignment * kSlotAlignment);
    bytes_[device] += size.AlignUp(kSlotAlignment);
    return resident - bytes_[device];
  };
  for (size_t g = 0; g < plan.backward_groups.size(); ++g) {
    const plan::LayerGroup& group = plan.backward_groups[g];
    const int device = plan::DeviceOf(plan, group, number);
    if (group.keep_activations) {
      const Bytes stride = model::KeptActivationBytes(model, group.layers, plan.microbatch_size)
                               .AlignUp(kSlotAlignment);
      shard.activations[g] = {device, take(device, stride * shard_microbatches_), stride};
    }
    if (!group.keep_weights) continue;
    for (int block : plan::BlocksOf(model, group.layers, true)) {
      shard.weights[g].emplace_back(block, take(device, model.blocks[block].weight_bytes));
    }
  }
  for (const plan::StashSpec& stash : plan::StashesOf(plan)) {
    if (!stash.kept) continue;
    const int device = plan::DeviceOf(plan, plan.backward_groups[stash.group], number);
    const Bytes stride =
        model::BoundaryBytes(model, stash.boundary, plan.microbatch_size).AlignUp(kSlotAlignment);
    shard.stashes[stash.boundary] = {device, take(device, stride * shard_microbatches_), stride};
  }
  shards_.push_back(std::move(shard));
}

Bytes KeptLayout::Weights(int group, int shard, int block) const {
  const auto& blocks = of_shard(shard).weights[group];
  return std::find_if(blocks.begin(), blocks.end(),
                      [block](const auto& b) { return b.first == block; })
      ->second;
}

}  // namespace harmony::dispatch
