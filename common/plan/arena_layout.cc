#include "common/plan/arena_layout.h"

#include <algorithm>

namespace harmony::plan {
namespace {

// Reserves `size` bytes at `end` and moves it on.
Bytes Take(Bytes& end, Bytes size) {
  const Bytes begin = end;
  end = (end + size).AlignUp(kSlotAlignment);
  return begin;
}

const model::ParamBlock& BlockOf(const model::ModelSpec& model, int reference) {
  return model.blocks[model.references[reference].block];
}

}  // namespace

ArenaLayout::ArenaLayout(const model::ModelSpec& model, const Plan& plan)
    : num_microbatches_(plan.num_microbatches),
      microbatches_per_forward_task_(plan.microbatches_per_forward_task),
      persistent_(command::PersistentBytes(model, plan.optimizer_moments)),
      batch_(model::LayOutBatch(model, plan.global_batch())),
      stashes_(model.num_layers() + 1),
      is_stashed_(model.num_layers() + 1, false),
      gradient_(model.references.size(), Bytes(-1)),
      gradient_stride_(model.references.size()) {
  Bytes end = persistent_;
  for (size_t input = 0; input < model.inputs.size(); ++input) {
    input_bytes_.push_back(model::InputBytes(model, static_cast<int>(input), plan.microbatch_size));
  }
  small_begin_ = Take(end, batch_.size * 2);
  scalars_begin_ = Take(end, Bytes(sizeof(command::StepScalars)) * 2);
  norms_begin_ =
      Take(end, Bytes(sizeof(command::NormSlot)) * static_cast<int64_t>(model.blocks.size()));
  loss_bytes_ = Bytes(sizeof(command::LossSlot)) * plan.loss_microbatches();
  loss_begin_ = Take(end, Bytes(sizeof(command::LossSlot)) * num_microbatches_);

  stash_begin_ = end;
  const auto add_stash = [&](int boundary) {
    StashPlace& place = stashes_[boundary];
    place.microbatch = model::BoundaryBytes(model, boundary, plan.microbatch_size);
    place.task = (place.microbatch * microbatches_per_forward_task_).AlignUp(kSlotAlignment);
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
    const int group = keeper[boundary];
    bool read_there = group >= 0;  // all of it, where it is kept
    for (int shard = 0; read_there && shard < reader.devices.num_shards(); ++shard) {
      read_there = RunsOnDeviceOf(plan, plan.backward_groups[group], ShardOf(plan, reader, shard));
    }
    if (!read_there && !HasStash(boundary)) add_stash(boundary);
  }
  for (const LayerGroup& group : plan.backward_groups) {
    if (group.layers.first == 0) continue;
    const Bytes gradient =
        model::BoundaryGradientBytes(model, group.layers.first, plan.microbatch_size);
    boundary_bytes_ = std::max(boundary_bytes_, gradient.AlignUp(kSlotAlignment));
  }
  banks_begin_ = Take(end, boundary_bytes_ * (plan.banks() * num_microbatches_));

  gradients_begin_ = end;
  const bool deferred = plan.update != job::UpdateMode::kEager;
  for (size_t reference = 0; reference < model.references.size(); ++reference) {
    const model::ParamBlock& block = BlockOf(model, static_cast<int>(reference));
    if (!deferred && !block.tied()) continue;
    gradient_stride_[reference] = block.gradient_bytes.AlignUp(kSlotAlignment);
    const LayerGroup& group = BackwardGroupOf(plan, model.references[reference].layer);
    gradient_[reference] = Take(end, gradient_stride_[reference] * group.gradient_parts);
  }
  ring_bytes_ = deferred ? Bytes(0) : plan.gradient_ring;
  ring_begin_ = Take(end, ring_bytes_);
  end_ = end;
}

Bytes ArenaLayout::Stash(int boundary, int microbatch) const {
  const StashPlace& place = stashes_[boundary];
  return place.begin + place.task * (microbatch / microbatches_per_forward_task_) +
         place.microbatch * (microbatch % microbatches_per_forward_task_);
}

Bytes ArenaLayout::BoundaryGradient(int bank, int microbatch) const {
  return banks_begin_ + boundary_bytes_ * (bank * num_microbatches_ + microbatch);
}

Bytes ArenaLayout::MinimalRing(const model::ModelSpec& model, const Plan& plan) {
  return Pieces(model, plan).largest;
}

Bytes ArenaLayout::DefaultRing(const model::ModelSpec& model, const Plan& plan) {
  const RingPieces pieces = Pieces(model, plan);
  return std::max(pieces.largest, UsualRing(pieces));
}

Bytes ArenaLayout::UsualRing(const model::ModelSpec& model, const Plan& plan) {
  return UsualRing(Pieces(model, plan));
}

Bytes ArenaLayout::UsualRing(const RingPieces& pieces) {
  return Bytes(pieces.all.count() / 2).AlignUp(kSlotAlignment);
}

ArenaLayout::RingPieces ArenaLayout::Pieces(const model::ModelSpec& model, const Plan& plan) {
  RingPieces pieces;
  for (const LayerGroup& group : plan.backward_groups) {
    Bytes sum;
    for (int reference : ReferencesOf(model, group.layers)) {
      const model::ParamBlock& block = BlockOf(model, reference);
      if (block.tied()) continue;
      sum += block.gradient_bytes.AlignUp(kSlotAlignment);
      pieces.all += block.gradient_bytes * std::min(group.devices.size(), group.gradient_parts);
    }
    pieces.largest = std::max(pieces.largest, sum * group.gradient_parts);
  }
  return pieces;
}

}  // namespace harmony::plan
