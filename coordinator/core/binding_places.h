#pragma once

// Where what a command names lies in the resident region of its device: the slots that positions of
// a visit stream through, weights, and what is kept. Functions of the visit and of the memory that
// it has been given. PURE; whoever asks owns the values, any thread that owns them may.

#include "common/plan/plan.h"
#include "coordinator/core/device_memory.h"
#include "coordinator/core/kept_layout.h"
#include "coordinator/core/work_graph.h"

namespace harmony {

// Positions stream through `slots` slots of `stride` bytes that begin at `item`, in turn; within
// the slot the tensor lies at `within`.
inline Bytes SlotOf(Bytes item, Bytes stride, int slots, int position, Bytes within) {
  return item + stride * (position % slots) + within;
}

// The first microbatch of those that the task at a position of the visit runs.
inline int FirstMicrobatch(const Visit& visit, int position) {
  return visit.microbatches[static_cast<size_t>(position)] * visit.span;
}

// Its number in the visit's list of outputs. REQUIRES: it is one of them.
int OutputNumber(const Visit& visit, int boundary);

// The bank of the arena that holds the gradients of the input of a backward group: groups take the
// banks in turn, from the top one down. REQUIRES: the group is not the last one, it has no bank.
int BoundaryBank(const Plan& plan, int backward_group);

// Of one visit that has its memory.
class BindingPlaces {
 public:
  // `memory`: of the visit's device. All must outlive it. An item may be asked for as long as
  // commands that touch it are to be issued.
  BindingPlaces(const Visit& visit, const KeptLayout& kept, const DeviceMemory& memory)
      : visit_(visit), kept_(kept), memory_(memory) {}

  Bytes In(int position, Bytes within) const {
    return SlotOf(memory_.offset(visit_.in), visit_.in_stride, visit_.slots, position, within);
  }
  Bytes Out(int position, Bytes within) const {
    return SlotOf(memory_.offset(visit_.out), visit_.out_stride, visit_.slots, position, within);
  }
  // Output number `output` of a forward: in its slot, or where it is kept.
  Bytes Output(int position, int output) const {
    const auto number = static_cast<size_t>(output);
    if (!visit_.output_kept[number]) return Out(position, visit_.output_at[number]);
    return kept_.Stash(visit_.outputs[number], FirstMicrobatch(visit_, position));
  }
  // Block number `i` of the visit: in its item, or where it is kept.
  Bytes Weight(int i) const {
    if (i < visit_.own_blocks) return memory_.offset(visit_.first_weight + i);
    return kept_.Weights(visit_.keeper, visit_.share, visit_.blocks[static_cast<size_t>(i)]);
  }
  Bytes Gradient(int i) const { return memory_.offset(visit_.first_gradient + i); }
  // Of a microbatch, counted within the share.
  Bytes Loss(int microbatch) const {
    return memory_.offset(visit_.loss) + Bytes(sizeof(LossSlot)) * microbatch;
  }
  // A task's input: in its slot, or where it is kept.
  Bytes Input(int position) const {
    if (visit_.kept_input < 0) return In(position, visit_.input_at);
    return kept_.Stash(visit_.kept_input, FirstMicrobatch(visit_, position));
  }

 private:
  const Visit& visit_;
  const KeptLayout& kept_;
  const DeviceMemory& memory_;
};

}  // namespace harmony
