#pragma once

// Runs compute tasks: the forward, backward or fused forward-backward of a layer group over one
// microbatch, on memory that the caller binds. No LibTorch type appears here.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_spec.h"
#include "common/plan/objects.h"

namespace harmony {

// The buffers of one use (ModelSpec::uses). Both have the layout of the use's parameter block.
struct UseBinding {
  int use = 0;
  const float* weights = nullptr;  // null in backward when !ParamUse::needed_in_backward
  float* gradients = nullptr;      // backward kinds only
};

struct BoundaryOutput {
  int boundary = 0;       // in (layers.first, layers.last + 1]
  float* data = nullptr;  // fp32 [samples, tokens, C]
};

// Everything a task reads and writes; the buffers belong to the caller, start on 64-byte boundaries
// and do not overlap. Tensors are fp32, token ids and labels int32 [samples, tokens].
struct GroupBinding {
  LayerRange layers;
  int64_t samples = 0;
  int64_t tokens = 0;  // of a sequence (T)
  // Forward: sequences of a microbatch, which divide `samples`; 0: all of them. Each microbatch's
  // part of a buffer starts on a 64-byte boundary, too.
  int64_t microbatch = 0;
  std::vector<UseBinding> uses;

  // The hidden states that enter the group. Forward and fused: boundary layers.first, null when
  // that is 0. Backward: the stash, i.e. the same, but boundary 1 when layers.first is 0.
  const float* input = nullptr;
  const int32_t* token_ids = nullptr;  // groups with layer 0
  // Forward and backward: a place of KeptActivationBytes where the one leaves what it computed for
  // the other, which then recomputes nothing and destroys it. Null: the backward recomputes.
  float* kept = nullptr;

  std::vector<BoundaryOutput> outputs;     // forward
  const float* output_gradient = nullptr;  // backward: of boundary layers.last + 1
  float* input_gradient = nullptr;         // of boundary layers.first; null when that is 0

  const int32_t* labels = nullptr;  // fused; a negative label is not counted
  LossSlot* loss = nullptr;         // fused
  int64_t total_labels = 0;         // of the global batch: gradients are of the mean over these

  bool first_microbatch = false;  // gradients are set, else added to
  bool last_microbatch = false;   // weight gradients are checked to be finite
};

// Errors of all three: ResourceExhausted when a temporary does not fit the workspace (sizes are
// named), OutOfRange when a token id or label lies outside the vocabulary (the position is named),
// NonFinite (below) when a layer's output, the loss, or, after the last microbatch, a weight
// gradient is not finite (the first such layer is named), Internal when a binding is missing. After
// an error the outputs and gradients hold nothing of use.
//
// Results depend on the bindings' contents, shapes, ATen's number of threads and the CPU's
// capability level only: not on how layers are grouped, nor on addresses (64-byte alignment given).
// A forward over several microbatches gives each the bits that it gets alone.
//
// One thread at a time.
class LayerRunner {
 public:
  explicit LayerRunner(ModelSpec model);
  // `rows_independent`: as gemm::RowsIndependent() says of this CPU. Where it is false, forwards
  // run one microbatch after the other.
  LayerRunner(ModelSpec model, bool rows_independent);
  ~LayerRunner();

  // See common/model/padding_token.h; -1: none.
  void set_padding_token(int64_t token);

  absl::Status RunForward(const GroupBinding& binding);
  // Recomputes from the group's input (unless the forward's work was kept), then goes back. The
  // same bits either way.
  absl::Status RunBackward(const GroupBinding& binding);
  // The last group: forward, loss and backward in one.
  absl::Status RunForwardBackward(const GroupBinding& binding);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A result that is infinite or not a number, in `what` ("output", "loss", "weight gradient") of a
// layer. Marked by a payload, so that a caller can tell it from other failures.
absl::Status NonFiniteError(int layer, const std::string& what);
bool IsNonFiniteError(const absl::Status& status);

// Sets the threads of ATen's operations (and 1 between operations), for those that the calling
// thread starts. The first call comes before any work.
void SetComputeThreads(int threads);

}  // namespace harmony
