#pragma once

// A model as everything behind its source sees it: any chain of layers, described by values. PURE:
// no weights, no kernels, no branch on where the description came from. The sources are functions
// that return one (families/causal_lm.h for the built-in families).
//
// A layer reads the tensors of its *boundary* (boundary b enters layer b), *batch inputs*, which
// may skip ahead to any layer (labels, masks), and the *parameter blocks* that it uses. It writes
// the tensors of the next boundary; the last layer ends in the loss. Boundary 0 has no tensors: the
// first layer reads batch inputs only. A value that a later layer reads again crosses every
// boundary on its way.
//
// A parameter block is the unit that is swapped, versioned and updated as one object: a run of
// tensors, each at a multiple of kSlotAlignment. A *reference* is one (layer, block) pair, in layer
// order; gradients are objects per reference. A block with several references is tied: its update
// forms the sum of their gradients, the last reference's first.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "common/base/dtype.h"
#include "common/base/units.h"
#include "common/model/layer_cost.h"
#include "common/model/value_range.h"

namespace harmony::model {

// A tensor that grows with the number of samples.
struct SampleTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // of one sample

  Bytes per_sample() const;
};

// Where the samples of an input come from.
enum class InputSource {
  kData,         // the job's data
  kLabelCounts,  // two int64 of each sample: how many of its labels count, and of the whole batch's
  kSampleKeys,   // an int64 of each sample: a random number of its own in that step
};

// A tensor that comes with a batch, the same for every layer that reads it. Its samples follow each
// other without gaps.
struct BatchInput {
  SampleTensor tensor;
  int64_t values_below = 0;  // integers lie in [0, values_below); 0: not bounded
  std::vector<int> layers;   // that read it, ascending, in their backward as well
  InputSource source = InputSource::kData;
  std::optional<int64_t> ignored = {};  // an integer besides: the label that does not count

  ValueRange range() const { return {values_below, ignored}; }
};

// Labels of which not all count: the loss is a mean over those that do.
struct CountedLabels {
  int input = 0;      // that brings them
  int64_t first = 0;  // of a sample, the number of the first that the loss looks at
  int64_t ignored = 0;
};

enum class InitKind { kNormal, kZeros, kOnes };

// What a step does to a tensor of a parameter block.
enum class TensorRole {
  kTrained,    // the optimizer updates it by its gradient
  kFixed,      // nothing: it has neither gradient nor moments
  kStatistic,  // it takes what lies in its gradient's place: BatchNorm's running mean, for one
};

// A form in which a block keeps a tensor.
struct StoredAs {
  DType dtype = DType::kF32;
  Bytes offset;  // from the start of the block in this form
  // The number of the tensor's first element where the block is a run of this type.
  int64_t first_element() const { return offset.count() / SizeOf(dtype).count(); }
};

// A parameter.
struct TensorSpec {
  std::string name;                  // as checkpoints call it: "transformer.h.0.ln_1.weight"
  std::vector<std::string> aliases;  // other names of the same tensor, where layers share it
  std::vector<int64_t> shape;        // as stored there (gpt2 Conv1D weights are [in, out])
  int64_t elements = 0;
  // The weight is what layers read; of a trained one that is not fp32 it is a working copy of an
  // fp32 master, which lies as the moment does. The accumulator is what a device adds microbatches
  // up in, the gradient what leaves the device when it has: the same, but where StoreGradientsAs
  // made it narrower. Of a fixed one, all but the weight are empty; of a statistic, accumulator and
  // gradient are of the weight's type and the moment a gap. Accumulators and moments lie at equal
  // offsets.
  StoredAs weight, accumulator, gradient, moment;
  TensorRole role = TensorRole::kTrained;
  bool weight_decay = false;  // whether the job's applies to it
  // What rules of the job say of it (common/job/parameter_rules.h); the source leaves them alone.
  std::optional<double> own_weight_decay;
  double learning_rate_factor = 1;
  bool exported = true;  // whether what a run leaves behind has it
  InitKind init = InitKind::kNormal;
  double init_std = 0.02;
  // Where its random numbers begin in those of its block: part of what fixes the bits of a new
  // model, and so no matter of how the block is laid out.
  int64_t init_position = 0;

  bool has_master() const { return role == TensorRole::kTrained && weight.dtype != DType::kF32; }
  // Of its exact value, as it is initialised, read and saved: the master's, where it has one.
  DType value_dtype() const { return has_master() ? DType::kF32 : weight.dtype; }
};

struct ParamBlock {
  std::string name;  // "embed.tokens", "layer.3", "head"
  int owner_layer = 0;
  std::vector<TensorSpec> tensors;
  // Of each form, gaps included, which stay zero. Weights are also what updates start from and
  // leave behind; a moment is as large for AdamW's first as for its second.
  Bytes weight_bytes, accumulator_bytes, gradient_bytes, moment_bytes;
  bool has_masters = false;     // of some tensor
  std::vector<int> references;  // ids of the references, in layer order

  // Masters are part of the parameter object, as the working copies are; only the latter travel.
  Bytes master_bytes() const { return has_masters ? moment_bytes : Bytes(); }
  bool tied() const { return references.size() > 1; }
  // Numbers that an update goes through, gaps included, which are those of the moment.
  int64_t elements() const;
};

struct ParameterReference {
  int layer = 0;
  int block = 0;
  // False where the backward reads no weights: an embedding's gradient needs no table.
  bool needed_in_backward = true;
};

struct LayerSpec {
  int index = 0;  // position in the chain
  int cost = 0;   // into ModelSpec::costs
  std::vector<int>
      references;  // ids into ModelSpec::references, in the order the layer's code expects
};

// Consecutive layers [first, last], both included.
struct LayerRange {
  int first = 0;
  int last = -1;
  int count() const { return last - first + 1; }
  bool contains(int layer) const { return first <= layer && layer <= last; }
  auto operator<=>(const LayerRange&) const = default;
};

// How checkpoints made elsewhere may differ from the names above.
struct CheckpointNames {
  std::string optional_prefix;                // names may lack it
  std::vector<std::string> ignored_suffixes;  // of tensors that are no parameters
  // Whether what a run leaves behind has a tied tensor under each of its names, as a state dict.
  bool write_aliases = false;
};

struct ModelSpec {
  std::string name;  // for people: "gpt2"
  std::vector<LayerSpec> layers;
  std::vector<LayerCost> costs;
  // By boundary, from 0 to num_layers(); the first and the last one have no tensors.
  std::vector<std::vector<SampleTensor>> boundaries;
  std::vector<BatchInput> inputs;
  int64_t labels_per_sample = 0;  // terms of the loss: gradients are of the mean over a batch's
  std::optional<CountedLabels> counted_labels;  // none: every label counts
  std::vector<ParamBlock> blocks;
  std::vector<ParameterReference> references;
  DType gradient_dtype = DType::kF32;  // of tensors with a master: StoreGradientsAs
  CheckpointNames checkpoint_names;
  // Whether plans are for GPUs: their backwards hold LayerCost::gpu_sums, too.
  bool on_gpus = false;

  int num_layers() const { return static_cast<int>(layers.size()); }
  const LayerCost& cost_of(int layer) const { return costs[layers[layer].cost]; }
  int64_t parameter_count() const;       // without alignment gaps, tied tensors once
  int64_t tied_parameter_count() const;  // elements with several references
};

bool HasStatistics(const ModelSpec& model);

// The layer whose backward completes a block's gradient: the first that refers to it.
inline int CompletingLayer(const ModelSpec& model, int block) {
  return model.references[model.blocks[block].references.front()].layer;
}
// The blocks whose gradients are complete when the backward of these layers is, in the order in
// which it completes them.
absl::InlinedVector<int, 8> BlocksCompletedBy(const ModelSpec& model, LayerRange layers);

// The tensor of a block whose name ends with ".<suffix>" (or is it), e.g. "attn.c_attn.weight";
// null when there is none.
const TensorSpec* FindTensor(const ParamBlock& block, absl::string_view suffix);

// ---- For sources ----

// Appends a tensor to a block and gives it its places there; shape, names, types, role and how it
// begins are set. What it is accumulated in is its gradient. REQUIRES: no tensor with a gradient
// follows a fixed one.
void AddTensor(ParamBlock& block, TensorSpec tensor);
// Appends a block; its number. Gradients and moments are objects, and so have a size, even of a
// block that nothing is done to.
int AddBlock(ModelSpec& model, ParamBlock block);
// Makes a layer, which is in the model already, use a block.
void AddReference(ModelSpec& model, int layer, int block, bool needed_in_backward = true);

// Has the gradients of tensors with a master leave their device as `dtype`, to which the whole sum
// is rounded. In place: each then begins at or before its accumulator.
void StoreGradientsAs(DType dtype, ModelSpec& model);

}  // namespace harmony::model
