#pragma once

// A layer's compute, whoever carries it out: the built-in families' code (worker/models) or graphs
// of ATen operations (worker/graphs), each on any device. The code above it (layer_runner.h) knows
// layers by this interface only.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/units.h"
#include "common/model/model_spec.h"
#include "worker/device/device_tensor.h"
#include "worker/device/lent_places.h"

namespace harmony::worker {

// The buffers of one reference of a parameter block (ModelSpec::references): both hold the block's
// tensors at the offsets that the model says. Gradients are added to in place; the runner zeroes
// them before the first microbatch. A reference without gradients is frozen.
struct ReferenceBinding {
  int reference = 0;
  DeviceAddress weights;    // none in backward when the reference is not needed there
  DeviceAddress gradients;  // in backward and fused tasks
};

// What a layer gets besides the tensors that cross its boundaries.
struct LayerCall {
  int64_t samples = 0;
  int64_t microbatch = 0;  // samples of one; less than `samples` in a forward only
  absl::Span<const ReferenceBinding> references;  // of the whole group
  // What the data set brings, each [samples, ...], in the model's order; a layer reads its own.
  // Without address where not bound.
  absl::Span<const DeviceTensor> batch;
  // Of a task with gradients: they were zeroed. What a layer keeps there from microbatch to
  // microbatch, such as running statistics, begins with the weights.
  bool first_microbatch = false;
  // The forward of a backward that recomputes: what a forward changes besides its outputs and what
  // lies with the gradients, it changed the first time.
  bool recompute = false;
  // What the task puts to its use later: temporaries may lie there until then. Null: nothing.
  LentPlaces* lent = nullptr;
  // Of a forward whose layer's backward is the next to put something into these places, which are
  // lent: the gradients of its inputs. What it saves may lie there as long as that one allows.
  absl::Span<const DeviceTensor> input_gradients;
};

// Where the last layer leaves the loss of a microbatch, as a LossSlot: sum and count. Gradients are
// those of the sum divided by the labels of the global batch.
struct LossBinding {
  DeviceAddress slot;
  int64_t total_labels = 0;
};

// The tensors of a boundary are all values that later layers need from earlier ones, in the
// description's order. A value that skips a layer is an input and an output of it: that layer
// copies it, and its gradient back. Those of floating-point numbers have gradients.
using Tensors = absl::Span<const DeviceTensor>;

// A tensor of the model for so many samples, their number its leading dimension, at a place.
inline DeviceTensor TensorAt(const model::SampleTensor& type, DeviceAddress address,
                             int64_t samples) {
  DeviceTensor tensor{address, type.dtype, {samples}};
  tensor.shape.insert(tensor.shape.end(), type.shape.begin(), type.shape.end());
  return tensor;
}

// What a forward leaves for its backward, the layer's inputs not included.
class SavedActivations {
 public:
  virtual ~SavedActivations() = default;
};

// One layer of the chain. The caller owns all tensors, which do not overlap and start at multiples
// of kSlotAlignment. Work may be queued on the device: what a call reads stays as it is until work
// that is queued later changes it. Workspace that a call takes is given back when it returns, but
// for what SavedActivations hold.
//
// Results depend on the contents and shapes of the tensors, the device's number of compute threads
// and its kind only: not on addresses, and not on whether activations were recomputed or kept. A
// call checks nothing for finiteness; it may go on with what is not finite.
//
// Errors: ResourceExhausted when a temporary does not fit the workspace (sizes named), OutOfRange
// when an input from the data set has a value that the layer lacks (the position is named),
// Internal when a binding is missing or the model does not fit the layer's code.
//
// The compute lane's thread calls; one call at a time.
class Layer {
 public:
  virtual ~Layer() = default;

  // Whether Forward takes several microbatches at once, and gives each the bits that it gets alone.
  virtual bool TakesSeveralMicrobatches() const { return false; }

  // The place that SavedActivations of a microbatch need when they are kept from one task to
  // another. A multiple of kSlotAlignment.
  virtual Bytes KeptBytes(int64_t samples) const = 0;

  // For a Forward to fill: in workspace that it takes as it goes or, where one is given, in a place
  // of KeptBytes. For a Backward: what a Forward left in that place. Null: nothing is saved, and a
  // Backward needs no Forward.
  virtual std::unique_ptr<SavedActivations> NewSaved(int64_t samples,
                                                     DeviceAddress place) const = 0;

  // Writes the outputs. `saved` gets what Backward needs; null: nothing is saved, the outputs have
  // the same bits. No outputs: only what is saved is wanted.
  virtual absl::Status Forward(const LayerCall& call, Tensors inputs, Tensors outputs,
                               SavedActivations* saved) = 0;

  // Writes the gradients of the inputs that have one, adds to those of the references. Gives up
  // what `saved` holds as it goes; a place that was kept holds nothing of use afterwards.
  virtual absl::Status Backward(const LayerCall& call, Tensors inputs, Tensors output_gradients,
                                std::unique_ptr<SavedActivations> saved,
                                Tensors input_gradients) = 0;

  // The last layer only, instead of both: forward, loss and backward in one.
  virtual absl::Status ForwardBackward(const LayerCall& call, const LossBinding& loss,
                                       Tensors inputs, Tensors input_gradients) = 0;
};

// The layers of a model in the order of the chain, for one device and job.
using LayerChain = std::vector<std::unique_ptr<Layer>>;

}  // namespace harmony::worker
