#include "common/plan/arena_layout.h"

#include <algorithm>

namespace harmony {
namespace {

// Reserves `size` bytes at `end` and moves it on.
Bytes Take(Bytes& end, Bytes size) {
  const Bytes begin = end;
  end = (end + size).AlignUp(kSlotAlignment);
  return begin;
}

const ParamBlock& BlockOf(const ModelSpec& model, int use) {
  return model.blocks[model.uses[use].block];
}

}  // namespace

ArenaLayout::ArenaLayout(const ModelSpec& model, const Plan& plan)
    : num_microbatches_(plan.num_microbatches),
      forward_span_(plan.forward_span),
      persistent_(PersistentBytes(model, plan.optimizer_moments)),
      batch_(LayOutBatch(model, plan.global_batch())),
      stashes_(model.num_layers() + 1),
      is_stashed_(model.num_layers() + 1, false),
      gradient_(model.uses.size(), Bytes(-1)),
      gradient_stride_(model.uses.size()) {
  Bytes end = persistent_;
  for (size_t input = 0; input < model.inputs.size(); ++input) {
    input_bytes_.push_back(InputBytes(model, static_cast<int>(input), plan.microbatch_size));
  }
  small_begin_ = Take(end, batch_.size * 2);
  scalars_begin_ = Take(end, Bytes(sizeof(StepScalars)) * 2);
  norms_begin_ = Take(end, Bytes(sizeof(NormSlot)) * static_cast<int64_t>(model.blocks.size()));
  loss_bytes_ = Bytes(sizeof(LossSlot)) * plan.replica_microbatches();
  loss_begin_ = Take(end, Bytes(sizeof(LossSlot)) * num_microbatches_);

  stash_begin_ = end;
  const auto add_stash = [&](int boundary) {
    StashPlace& place = stashes_[boundary];
    place.microbatch = BoundaryBytes(model, boundary, plan.microbatch_size);
    place.task = (place.microbatch * forward_span_).AlignUp(kSlotAlignment);
    place.begin = Take(end, place.task * plan.num_forwards());
  };
  std::vector<int> keeper(model.num_layers() + 1, -1);  // backward group that keeps the stash
  for (const StashSpec& stash : StashesOf(plan)) {
    if (stash.kept) {
      keeper[stash.boundary] = stash.group;
      continue;
    }
    add_stash(stash.boundary);
    is_stashed_[stash.boundary] = true;
  }
  for (size_t f = 0; f < plan.forward_groups.size(); ++f) {
    const int boundary = plan.forward_groups[f].layers.last + 1;
    const LayerGroup& reader = f + 1 < plan.forward_groups.size() ? plan.forward_groups[f + 1]
                                                                  : plan.backward_groups.back();
    const int group = keeper[boundary];  // read where it is kept
    if (group >= 0 && plan.backward_groups[group].device == reader.device) continue;
    if (!HasStash(boundary)) add_stash(boundary);
  }
  for (const LayerGroup& group : plan.backward_groups) {
    if (group.layers.first == 0) continue;
    const Bytes gradient = BoundaryGradientBytes(model, group.layers.first, plan.microbatch_size);
    boundary_bytes_ = std::max(boundary_bytes_, gradient.AlignUp(kSlotAlignment));
  }
  const int banks =
      std::min<int>(plan.boundary_banks, static_cast<int>(plan.backward_groups.size()) - 1);
  banks_begin_ = Take(end, boundary_bytes_ * (banks * num_microbatches_));

  gradients_begin_ = end;
  const bool deferred = plan.update != UpdateMode::kEager;
  for (size_t use = 0; use < model.uses.size(); ++use) {
    const ParamBlock& block = BlockOf(model, static_cast<int>(use));
    if (!deferred && !block.tied()) continue;
    gradient_stride_[use] = block.gradient_bytes.AlignUp(kSlotAlignment);
    gradient_[use] = Take(end, gradient_stride_[use] * plan.replicas);
  }
  ring_bytes_ = deferred ? Bytes(0) : plan.gradient_ring;
  ring_begin_ = Take(end, ring_bytes_);
  end_ = end;
}

Bytes ArenaLayout::Stash(int boundary, int microbatch) const {
  const StashPlace& place = stashes_[boundary];
  return place.begin + place.task * (microbatch / forward_span_) +
         place.microbatch * (microbatch % forward_span_);
}

Bytes ArenaLayout::BoundaryGradient(int bank, int microbatch) const {
  return banks_begin_ + boundary_bytes_ * (bank * num_microbatches_ + microbatch);
}

Bytes ArenaLayout::MinimalRing(const ModelSpec& model, const Plan& plan) {
  Bytes most;
  for (const LayerGroup& group : plan.backward_groups) {
    Bytes sum;
    for (int use : UsesOf(model, group.layers)) {
      const ParamBlock& block = BlockOf(model, use);
      if (!block.tied()) sum += block.gradient_bytes.AlignUp(kSlotAlignment);
    }
    most = std::max(most, sum * plan.replicas);
  }
  return most;
}

Bytes ArenaLayout::DefaultRing(const ModelSpec& model, const Plan& plan) {
  Bytes all;
  for (const ParamBlock& block : model.blocks) {
    if (!block.tied()) all += block.gradient_bytes;
  }
  const Bytes half = Bytes(all.count() / 2).AlignUp(kSlotAlignment);
  return std::max(MinimalRing(model, plan), half * plan.replicas);
}

}  // namespace harmony
