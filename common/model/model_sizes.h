#pragma once

// Sizes that follow from a description, by one rule for every chain of layers. PURE.

#include <cstdint>
#include <vector>

#include "common/base/units.h"
#include "common/model/model_spec.h"

namespace harmony::model {

// ---- Boundaries and batches ----

// The tensors that cross boundary `b`, for so many samples: one behind the other, each at a
// multiple of kSlotAlignment. Zero for boundary 0 and behind the last layer.
Bytes BoundaryBytes(const ModelSpec& model, int boundary, int64_t samples);
// Their gradients, of the same types and laid out alike; one that has none leaves its room empty.
Bytes BoundaryGradientBytes(const ModelSpec& model, int boundary, int64_t samples);

// What enters a layer from outside: its boundary's tensors, for the first layer its batch inputs.
Bytes LayerInputBytes(const ModelSpec& model, int layer, int64_t samples);

// Whether what crosses a boundary for several microbatches in one task is what crosses it for each,
// one behind the other: one tensor a boundary, each microbatch's part on a slot boundary. So are
// the parts of inputs that are computed with: a library's products may depend on where a tensor
// begins.
bool BoundariesSplit(const ModelSpec& model, int64_t microbatch_size);

Bytes InputBytes(const ModelSpec& model, int input, int64_t samples);
// The batch inputs that a task on these layers reads, ascending.
std::vector<int> InputsOf(const ModelSpec& model, LayerRange layers);
// Where the inputs of a batch lie in it, each at a multiple of kSlotAlignment.
struct BatchLayout {
  std::vector<Bytes> offsets;  // by input
  Bytes size;
};
BatchLayout LayOutBatch(const ModelSpec& model, int64_t samples);

// ---- Layers ----

// Bytes of the parameters that a layer uses, a block as often as it does.
Bytes LayerParameterBytes(const ModelSpec& model, int layer);
// And of what their gradients are added up in.
Bytes LayerAccumulatorBytes(const ModelSpec& model, int layer);

// Floating-point operations of a layer's forward; backward with recompute is about three times
// that.
double ForwardFlops(const ModelSpec& model, int layer, int64_t samples);

// ---- Kept activations ----

// Where a forward leaves what its backward needs, so that nothing is recomputed
// (LayerGroup::keep_activations): layer by layer its tensors, then, but for the last layer, its
// output, each at a multiple of kSlotAlignment. Layer 0 keeps nothing: its output is the group's
// stash, and its inputs are read again.
Bytes KeptActivationBytes(const ModelSpec& model, LayerRange range, int64_t samples);
// The tensors of one layer alone.
Bytes KeptTensorBytes(const LayerCost& cost, int64_t samples);

// ---- Workspace of a task on a range of layers ----

// The task: a forward, a backward with recompute (with the model's last layer: the fused task), and
// those of a group that keeps its activations.
enum class WorkspaceOf { kForward, kBackward, kKeepingForward, kKeptBackward };

// The most a worker's capped workspace holds at any moment of the task: an upper bound that tests
// hold against measured peaks.
Bytes WorkspaceBound(const ModelSpec& model, WorkspaceOf task, LayerRange range, int64_t samples);
// What it is expected to hold at its peak where so many threads compute.
Bytes WorkspacePeak(const ModelSpec& model, WorkspaceOf task, LayerRange range, int64_t samples,
                    int threads);

// ---- Footprint ----

// Weights and their masters + gradients + optimizer state + all activations that autograd saves for
// one global batch without recompute, logits included.
struct Footprint {
  Bytes weights, masters, gradients, optimizer_state, activations;
  Bytes total() const { return weights + masters + gradients + optimizer_state + activations; }
};
Footprint ComputeFootprint(const ModelSpec& model, int64_t global_batch, int optimizer_moments);

// ---- Precision ----

// Whether parameters are trained in fp32 from which layers read rounded copies.
bool HasMasters(const ModelSpec& model);
// What layers compute in, as reports and profiles call it: "fp32" or "bf16".
const char* PrecisionName(const ModelSpec& model);

}  // namespace harmony::model
