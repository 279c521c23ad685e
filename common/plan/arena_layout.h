#pragma once

// Where everything but parameters and moments lies in the host arena. A pure function of model and
// plan, so it survives any crash without a directory. PURE.
//
// Behind the persistent objects (objects.h) come, each slot at a multiple of kSlotAlignment:
//   small     two batches, two step scalars, a norm per block, the loss slots of a step
//             (each kind in one slot, one record behind the other)
//   stash     one slot per (boundary stashed on the host or passed on through the arena,
//             forward task): at the end of forward all exist at once
//   banks     `boundary_banks` banks of one boundary gradient per microbatch, each as large as the
//             largest; backward group number i from the top commits its input gradient into bank
//             i mod boundary_banks
//   gradients deferred: a slot per reference and part. Eager: a slot per part and reference of a
//             tied block, and a ring for the rest, which the dispatcher assigns from

#include <vector>

#include "common/base/units.h"
#include "common/command/objects.h"
#include "common/model/model_sizes.h"
#include "common/model/model_spec.h"
#include "common/plan/plan.h"

namespace harmony::plan {

class ArenaLayout {
 public:
  ArenaLayout(const model::ModelSpec& model, const Plan& plan);

  Bytes persistent_bytes() const { return persistent_; }
  Bytes dynamic_bytes() const { return end_ - persistent_; }
  Bytes end() const { return end_; }
  // Of dynamic_bytes(), what stashes and boundary gradients take.
  Bytes stash_and_boundary_bytes() const { return gradients_begin_ - stash_begin_; }

  // Offsets from the start of the arena.
  Bytes Batch(int parity) const { return small_begin_ + batch_.size * parity; }
  Bytes batch_bytes() const { return batch_.size; }
  // A microbatch's part of a batch input.
  Bytes Input(int parity, int input, int microbatch) const {
    return Batch(parity) + batch_.offsets[input] + input_bytes_[input] * microbatch;
  }
  Bytes input_bytes(int input) const { return input_bytes_[input]; }  // of one microbatch
  Bytes Scalars(int parity) const {
    return scalars_begin_ + Bytes(sizeof(command::StepScalars)) * parity;
  }
  Bytes Norm(int block) const { return norms_begin_ + Bytes(sizeof(command::NormSlot)) * block; }
  Bytes Loss(int part = 0) const { return loss_begin_ + loss_bytes_ * part; }
  Bytes loss_bytes() const { return loss_bytes_; }  // of one of loss_parts' LossSlots
  bool HasStash(int boundary) const { return stashes_[boundary].begin.count() >= 0; }
  // Always stashed here, for the backward; the other boundaries that have a stash only pass
  // through.
  bool IsStashed(int boundary) const { return is_stashed_[boundary]; }
  // Those of one forward task follow each other. REQUIRES: HasStash(boundary)
  Bytes Stash(int boundary, int microbatch) const;
  Bytes BoundaryGradient(int bank, int microbatch) const;
  bool ReferenceHasOwnGradientSlot(int reference) const {
    return gradient_[reference].count() >= 0;
  }
  // REQUIRES: UseHasOwnGradientSlot
  Bytes Gradient(int reference, int part = 0) const {
    return gradient_[reference] + gradient_stride_[reference] * part;
  }
  Bytes ring_begin() const { return ring_begin_; }
  Bytes ring_bytes() const { return ring_bytes_; }

  // Smallest ring that can work (the largest group's gradients, of every part), and the one that
  // has room for half of all: two bytes a parameter and part, with which the arena takes 14.
  static Bytes MinimalRing(const model::ModelSpec& model, const Plan& plan);
  static Bytes DefaultRing(const model::ModelSpec& model, const Plan& plan);
  // Half of the gradients that pass through it, as often as the devices of a group send them.
  static Bytes UsualRing(const model::ModelSpec& model, const Plan& plan);

 private:
  struct StashPlace {
    Bytes begin = Bytes(-1);  // never in the arena
    Bytes task, microbatch;   // of one forward task, of one microbatch of it
  };
  // What passes through the ring in a step: of a group with every part, of all with a part a shard.
  struct RingPieces {
    Bytes largest, all;  // of a group, of all groups
  };
  static RingPieces Pieces(const model::ModelSpec& model, const Plan& plan);
  static Bytes UsualRing(const RingPieces& pieces);

  int num_microbatches_, microbatches_per_forward_task_;
  Bytes persistent_, small_begin_, scalars_begin_, norms_begin_, loss_begin_, loss_bytes_,
      stash_begin_, boundary_bytes_, banks_begin_, gradients_begin_, ring_begin_, ring_bytes_, end_;
  model::BatchLayout batch_;
  std::vector<Bytes> input_bytes_;      // by batch input: of one microbatch
  std::vector<StashPlace> stashes_;     // by boundary
  std::vector<bool> is_stashed_;        // by boundary
  std::vector<Bytes> gradient_;         // by reference; -1: from the ring
  std::vector<Bytes> gradient_stride_;  // by reference: from part to part
};

}  // namespace harmony::plan
