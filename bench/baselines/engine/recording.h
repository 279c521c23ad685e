#pragma once

// A schedule as a list for who carries it out for real (bench/virtual_trainer): beside each
// operation of a timeline, what it does, and where in a device's memory. The same calls that give
// the clock its operations make the list, so that both decide the same. PURE.
//
// Memory is given out in pages: a stay is what a tensor, or the scratch of a task, has of them, any
// pages in any order. What became free first is taken first, as DeviceMemory has it: with the
// operations that it waits for, an operation waits for all who worked with its pages before.

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "bench/baselines/engine/timeline.h"
#include "common/base/units.h"
#include "common/model/model_spec.h"

namespace harmony::baselines {

using Tensor = int32_t;  // number of a tensor of one device
inline constexpr Tensor kNoTensor = -1;

using Stay = int32_t;
inline constexpr Stay kNoStay = -1;

// Neighbouring bytes of a device's memory.
struct Extent {
  Bytes offset, size;
};

struct StayPlace {
  int device = 0;
  std::vector<Extent> extents;  // as many bytes as it has pages
};

// What a task computes, and the part that each of its tensors plays; kNoTensor: it has none.
struct Work {
  enum class Kind { kNone, kForward, kBackward, kUpdate, kReduce };
  Kind kind = Kind::kNone;
  int layer = -1;       // of forward and backward
  int microbatch = -1;  // and its number, which is unique over all steps
  int block = -1;       // of update and reduction
  Tensor batch = kNoTensor, input = kNoTensor, saved = kNoTensor;
  // Where there is none, the output or the gradient of the input leaves for another device, or is
  // not needed, and lies at the beginning of the scratch.
  Tensor output = kNoTensor, input_gradient = kNoTensor;
  Tensor output_gradient = kNoTensor;
  // Of the layer's references in their order, or of the block alone.
  std::vector<Tensor> weights = {}, gradients = {};
  Tensor state = kNoTensor, weights_before = kNoTensor;
  Operation arrival = kNoOperation;  // sends what the device makes room for: input or gradient
};

struct Action {
  enum class Kind {
    kNothing,
    kCopyIn,   // a tensor from the host
    kCopyOut,  // and to it
    kSend,     // what an operation made, to another device
    kTask,
  };
  struct Use {
    Tensor tensor = kNoTensor;
    Stay stay = kNoStay;
    bool made = false;   // by this operation: it had no contents before
    bool dirty = false;  // what the host has is of no use afterwards
  };
  Kind kind = Kind::kNothing;
  int device = 0;
  std::vector<Use> uses;  // of a copy, one
  Stay scratch = kNoStay;
  Work work = {};
  std::vector<Tensor> ends;  // cease to exist with it
  Operation sends = kNoOperation;
  Bytes size;  // of a copy: what it moves
  Traffic traffic = Traffic::kActivations;
};

class Recording {
 public:
  // The next device's.
  void AddDevice(Bytes memory);
  // Pages for a tensor or for scratch. REQUIRES: so many bytes are free.
  Stay Take(int device, Bytes size);
  void GiveBack(Stay stay);
  // Of the operation that was added last, or one before it.
  Action& At(Operation operation);

  const std::vector<Action>& actions() const { return actions_; }  // by operation
  const StayPlace& place(Stay stay) const { return stays_[static_cast<size_t>(stay)]; }

 private:
  std::vector<std::deque<Extent>> free_;  // by device, in the order in which it became free
  std::vector<StayPlace> stays_;
  std::vector<Action> actions_;
};

}  // namespace harmony::baselines
