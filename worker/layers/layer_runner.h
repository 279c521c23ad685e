#pragma once

// Runs compute tasks: the forward, backward or fused forward-backward of a group of layers over one
// microbatch (a forward: also over several), on memory that the caller binds. It moves boundary
// tensors from layer to layer, keeps or recomputes activations and adds up gradients, and knows
// layers and device by their interfaces only.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_spec.h"
#include "worker/device/compute_device.h"
#include "worker/layers/layer.h"

namespace harmony::worker {

// Returns when the gradient buffers of a reference may be written.
using AwaitGradient = std::function<absl::Status(int reference)>;

struct BoundaryOutput {
  int boundary = 0;  // in (layers.first, layers.last + 1]
  DeviceAddress address;
};

// Everything a task reads and writes. The buffers belong to the caller, start at multiples of
// kSlotAlignment and do not overlap. Those of boundaries and their gradients hold the tensors as
// BoundaryBytes and BoundaryGradientBytes say, microbatch after microbatch.
struct GroupBinding {
  model::LayerRange layers;
  int64_t samples = 0;
  // Forward: samples of a microbatch, which divide `samples`; 0: all of them. Each microbatch's
  // part of a buffer starts at a multiple of kSlotAlignment, too.
  int64_t microbatch = 0;
  std::vector<ReferenceBinding> references;

  // Forward and fused: boundary layers.first, nowhere when that has no tensors. Backward: the
  // stash, which is the same, or boundary layers.first + 1 when that has no tensors.
  DeviceAddress input;
  std::vector<DeviceAddress> batch;  // by the model's inputs; nowhere: the layers read others
  // Forward and backward: a place of KeptActivationBytes where the one leaves what it computed for
  // the other, which then recomputes nothing and destroys it. Nowhere: the backward recomputes.
  DeviceAddress kept;

  std::vector<BoundaryOutput> outputs;  // forward
  DeviceAddress output_gradient;        // backward: of boundary layers.last + 1
  DeviceAddress input_gradient;         // of boundary layers.first, when that has any

  LossBinding loss;  // fused

  // Gradients, of backward and fused tasks. At the address of each lies its first buffer, and the
  // next ones each so many bytes further, or before; which of them this task adds to follows from
  // the number of its replica, as model/sum_tree.h says.
  int replica = 0;
  Bytes gradient_stride;
  bool first_microbatch = false;  // of the replica: gradients are set, else added to
  bool last_microbatch = false;   // of the replica: the buffer is added to the sums that wait
  bool stores_gradients = false;  // then the sums are stored as they leave, and checked
  // Asked before the first write to the gradients of each reference, in the order of the backward,
  // and before the sums that wait are read; an error ends the task. Null: there is nothing to wait
  // for.
  AwaitGradient await_buffer, await_sum;
};

// Errors of all three: those of Layer; NonFinite (below) when a layer's output, the loss, or, when
// they are stored, a weight gradient is not finite (the first such layer is named); Internal when a
// binding is missing. After an error the outputs and gradients hold nothing of use.
//
// Results depend on the bindings' contents and shapes and on what the layers say: not on how layers
// are grouped, nor on addresses. A forward over several microbatches gives each the bits that it
// gets alone.
//
// One thread at a time.
class LayerRunner {
 public:
  // `device` outlives the runner. REQUIRES: a layer for each of the model's.
  LayerRunner(model::ModelSpec model, LayerChain layers, ComputeDevice& device);
  ~LayerRunner();

  absl::Status RunForward(const GroupBinding& binding);
  // Recomputes from the group's input (unless the forward's work was kept), then goes back. The
  // same bits either way.
  absl::Status RunBackward(const GroupBinding& binding);
  // The last group: forward, loss and backward in one.
  absl::Status RunForwardBackward(const GroupBinding& binding);

 private:
  struct Chain;
  class Task;

  absl::Status Run(const char* phase, const GroupBinding& binding, absl::Status (Task::*body)());
  // From a microbatch to the next one.
  void Advance(GroupBinding& forward) const;

  const std::unique_ptr<const Chain> chain_;
};

}  // namespace harmony::worker
