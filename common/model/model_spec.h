#pragma once

// A model as the planner, the dispatcher and the workers see it: a chain of layers, and the
// parameter blocks they use. PURE: no weights, no torch.
//
//   layer 0            the embedding        (token ids -> hidden states)
//   layers 1 .. n      transformer blocks   (hidden states -> hidden states)
//   layer n+1          the head: final norm, projection to the vocabulary, cross entropy
//
// Layer *boundary* b is the tensor that enters layer b: boundary 0 are token ids (int32, [B, T]),
// boundaries 1 .. n+1 are hidden states (fp32, [B, T, C]).
//
// A *parameter block* is the unit that is swapped, versioned and updated as one object: a run of
// tensors in one fp32 buffer. Mostly one block a layer; the embedding of a tied model has two,
// because its token table is used again by the head. A *use* is one (layer, block) pair, in layer
// order; gradients are objects per use. A block with two uses is tied: its update forms the sum of
// their gradients, `g(last use) + g(first use)`.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/units.h"
#include "common/model/model_config.h"

namespace harmony {

enum class LayerKind { kEmbedding, kBlock, kHead };

enum class InitKind { kNormal, kZeros, kOnes };

struct TensorSpec {
  std::string name;  // as Hugging Face writes it, prefix included: "transformer.h.0.ln_1.weight"
  std::vector<int64_t> shape;  // as stored there (gpt2 Conv1D weights are [in, out])
  int64_t offset = 0;  // in elements from the start of its block; a multiple of 16 (64 bytes)
  int64_t elements = 0;
  bool weight_decay = false;  // two or more dimensions (section 10)
  InitKind init = InitKind::kNormal;
  double init_std = 0.02;
};

struct ParamBlock {
  std::string name;  // "embed.tokens", "layer.3", "head"
  int owner_layer = 0;
  std::vector<TensorSpec> tensors;
  int64_t elements = 0;   // of the buffer, alignment gaps included (they stay zero)
  std::vector<int> uses;  // ids of the uses, in layer order; two when tied

  Bytes size() const { return Bytes(elements * 4); }
};

struct ParamUse {
  int layer = 0;
  int block = 0;
  // False for embeddings: index_add needs no table, so backward does not load the block.
  bool needed_in_backward = true;
};

struct LayerSpec {
  LayerKind kind = LayerKind::kBlock;
  int index = 0;          // position in the chain
  std::vector<int> uses;  // ids into ModelSpec::uses, in the order the layer's code expects
};

// Consecutive layers [first, last], both included.
struct LayerRange {
  int first = 0;
  int last = -1;
  int count() const { return last - first + 1; }
  bool contains(int layer) const { return first <= layer && layer <= last; }
  auto operator<=>(const LayerRange&) const = default;
};

// Sizes of a model of which nothing but measurements is known (an imported profile): it can be
// planned for, never run. Boundaries may differ in size. All are those of `samples` samples.
class MeasuredSizes {
 public:
  virtual ~MeasuredSizes() = default;
  virtual Bytes Boundary(int boundary, int64_t samples) const = 0;  // from 1 on
  virtual Bytes ForwardWorkspace(LayerRange range, int64_t samples) const = 0;
  virtual Bytes BackwardWorkspace(LayerRange range, int64_t samples) const = 0;
};

struct ModelSpec {
  ModelConfig config;
  std::vector<LayerSpec> layers;
  std::vector<ParamBlock> blocks;
  std::vector<ParamUse> uses;
  // Null for a model that follows from its config. Else that says nothing, and of the costs below
  // there are the sizes of boundaries and BackwardWorkspaceBytes, ForwardWorkspaceBytes only.
  std::shared_ptr<const MeasuredSizes> measured;

  int num_layers() const { return static_cast<int>(layers.size()); }
  int64_t parameter_count() const;       // without alignment gaps, tied tensors once
  int64_t tied_parameter_count() const;  // elements with two uses
};

// For a config that ParseModelConfig returned. Use order, as the layers' code expects it:
//   embedding: [tokens] (llama family) or [tokens, positions] (gpt2)
//   block:     [its one block]
//   head:      [norm and lm_head] when untied, [norm, tokens] when tied
ModelSpec BuildModelSpec(const ModelConfig& config);

// The tensor of a block whose name ends with ".<suffix>" (or is it), e.g. "attn.c_attn.weight";
// null when there is none.
const TensorSpec* FindTensor(const ParamBlock& block, absl::string_view suffix);

// Rows (tokens) of logits that the head computes at a time; a function of the vocabulary only, so
// that results depend on neither cap nor batch. About kHeadChunkBytes of logits.
inline constexpr int64_t kHeadChunkBytes = int64_t{64} << 20;
int64_t HeadChunkRows(const ModelConfig& config);

// ---- Costs, for one sequence batch of `samples` sequences of `tokens` tokens ----

// Bytes of boundary `b` (see above).
Bytes BoundaryBytes(const ModelSpec& model, int boundary, int64_t samples, int64_t tokens);

// Bytes of the parameters that a layer uses, a block as often as it does.
Bytes LayerParameterBytes(const ModelSpec& model, int layer);

// Floating-point operations of a layer's forward (multiply-adds count as two); backward with
// recompute is about three times that.
double ForwardFlops(const ModelSpec& model, int layer, int64_t samples, int64_t tokens);

// What autograd keeps of one layer between forward and backward, the layer's input not included.
Bytes SavedActivationBytes(const ModelSpec& model, int layer, int64_t samples, int64_t tokens);

// The most a worker's capped workspace holds at any moment while it runs forward (or backward with
// recompute, or the fused head) of a layer range: saved activations of all its layers plus the
// largest temporaries. An upper bound that tests hold against measured peaks.
Bytes ForwardWorkspaceBytes(const ModelSpec& model, LayerRange range, int64_t samples,
                            int64_t tokens);
Bytes BackwardWorkspaceBytes(const ModelSpec& model, LayerRange range, int64_t samples,
                             int64_t tokens);

// Where a forward leaves what its backward needs, so that nothing is recomputed
// (LayerGroup::keep_activations): of each block of the range its tensors, each at a multiple of
// kSlotAlignment, then, but for the last block, its output. The block's part of that by itself.
Bytes KeptActivationBytes(const ModelSpec& model, LayerRange range, int64_t samples,
                          int64_t tokens);
Bytes KeptBlockBytes(const ModelConfig& config, int64_t samples, int64_t tokens);
// The workspace of the tasks that do so, as above.
Bytes KeptForwardWorkspaceBytes(const ModelSpec& model, LayerRange range, int64_t samples,
                                int64_t tokens);
Bytes KeptBackwardWorkspaceBytes(const ModelSpec& model, LayerRange range, int64_t samples,
                                 int64_t tokens);

// What such a task is expected to hold at its peak: never less than it does, and hardly more. The
// bounds above have room for holes between allocations, too. REQUIRES: sizes that fit a machine.
Bytes ForwardWorkspacePeak(const ModelSpec& model, LayerRange range, int64_t samples,
                           int64_t tokens, int threads);
Bytes BackwardWorkspacePeak(const ModelSpec& model, LayerRange range, int64_t samples,
                            int64_t tokens, int threads);
Bytes KeptForwardWorkspacePeak(const ModelSpec& model, LayerRange range, int64_t samples,
                               int64_t tokens, int threads);
Bytes KeptBackwardWorkspacePeak(const ModelSpec& model, LayerRange range, int64_t samples,
                                int64_t tokens, int threads);

// Section 1: weights + gradients + optimizer state + all activations that autograd saves for one
// global batch without recompute, logits included.
struct Footprint {
  Bytes weights, gradients, optimizer_state, activations;
  Bytes total() const { return weights + gradients + optimizer_state + activations; }
};
Footprint ComputeFootprint(const ModelSpec& model, int64_t global_batch, int64_t tokens,
                           int optimizer_moments);

}  // namespace harmony
