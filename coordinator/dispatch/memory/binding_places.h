#pragma once

// Where what a command names lies in the resident region of its device: the slots that positions of
// an execution stream through, weights, and what is kept. Functions of the execution and of the
// memory that it has been given. PURE; whoever asks owns the values, any thread that owns them may.

#include "common/plan/plan.h"
#include "coordinator/dispatch/graph/work_graph.h"
#include "coordinator/dispatch/memory/device_memory.h"
#include "coordinator/dispatch/memory/kept_layout.h"

namespace harmony::dispatch {

// Positions stream through `slots` slots of `stride` bytes that begin at `item`, in turn; within
// the slot the tensor lies at `within`.
inline Bytes SlotOf(Bytes item, Bytes stride, int slots, int position, Bytes within) {
  return item + stride * (position % slots) + within;
}

// The first microbatch of those that the task at a position of the execution runs.
inline int FirstMicrobatch(const GroupExecution& execution, int position) {
  return execution.microbatches[static_cast<size_t>(position)] * execution.task_microbatches;
}

// Its number in the execution's list of outputs. REQUIRES: it is one of them.
int OutputNumber(const GroupExecution& execution, int boundary);

// The bank of the arena that holds the gradients of the input of a backward group: groups take the
// banks in turn, from the top one down. REQUIRES: the group is not the last one, it has no bank.
int BoundaryBank(const plan::Plan& plan, int backward_group);

// Of one execution that has its memory.
class BindingPlaces {
 public:
  // `memory`: of the execution's device. All must outlive it. An item may be asked for as long as
  // commands that touch it are to be issued.
  BindingPlaces(const GroupExecution& execution, const KeptLayout& kept, const DeviceMemory& memory)
      : execution_(execution), kept_(kept), memory_(memory) {}

  Bytes In(int position, Bytes within) const {
    return SlotOf(memory_.offset(execution_.in), execution_.in_stride, execution_.slots, position,
                  within);
  }
  Bytes Out(int position, Bytes within) const {
    return SlotOf(memory_.offset(execution_.out), execution_.out_stride, execution_.slots, position,
                  within);
  }
  // Output number `output` of a forward: in its slot, or where it is kept.
  Bytes Output(int position, int output) const {
    const auto number = static_cast<size_t>(output);
    if (!execution_.output_kept[number]) return Out(position, execution_.output_at[number]);
    return kept_.Stash(execution_.outputs[number], FirstMicrobatch(execution_, position));
  }
  // Block number `i` of the execution: in its item, or where it is kept.
  Bytes Weight(int i) const {
    if (i < execution_.own_blocks) return memory_.offset(execution_.first_weight + i);
    return kept_.Weights(execution_.keeper, execution_.shard,
                         execution_.blocks[static_cast<size_t>(i)]);
  }
  // A buffer of its gradient number `i`. The first one outlives the item of the others, which the
  // stride is read from.
  Bytes Gradient(int i, int buffer = 0) const {
    return memory_.offset(execution_.first_gradient + i) +
           (buffer == 0 ? Bytes(0) : GradientStride() * buffer);
  }
  // From one buffer to the next. The further ones lie behind the first ones as seen from the end of
  // the region that items are stacked from. REQUIRES: of a backward kind.
  Bytes GradientStride() const {
    const bool upward =
        memory_.offset(execution_.waiting_sums) > memory_.offset(execution_.first_gradient);
    return upward ? execution_.gradient_bytes : execution_.gradient_bytes * -1;
  }
  // Of a microbatch, counted within the shard.
  Bytes Loss(int microbatch) const {
    return memory_.offset(execution_.loss) + Bytes(sizeof(command::LossSlot)) * microbatch;
  }
  // A task's input: in its slot, or where it is kept.
  Bytes Input(int position) const {
    if (!execution_.input_kept) return In(position, execution_.input_at);
    return kept_.Stash(execution_.input, FirstMicrobatch(execution_, position));
  }

 private:
  const GroupExecution& execution_;
  const KeptLayout& kept_;
  const DeviceMemory& memory_;
};

}  // namespace harmony::dispatch
