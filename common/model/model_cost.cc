// What layers cost: operations, saved activations, workspace. Analytic, per token, in fp32
// elements; the letters are those of the shapes:
//   C hidden, I intermediate, V vocabulary, H heads, K key/value heads, D head size, T tokens

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/model/model_spec.h"

namespace harmony {
namespace {

// Sizes of a planned job may be absurd; they must still compare as "too large".
Bytes Saturate(long double bytes) {
  constexpr long double kMost = static_cast<long double>(std::numeric_limits<int64_t>::max() / 8);
  return Bytes(bytes >= kMost ? std::numeric_limits<int64_t>::max() / 8
                              : static_cast<int64_t>(bytes));
}

Bytes Elements(long double per_token, int64_t samples, int64_t tokens) {
  return Saturate(per_token * samples * tokens * 4);
}

// Block-wise buffers of the attention kernel and the allocator's rounding, whatever the shape.
constexpr Bytes kFixedWorkspace = MiB(4);

// ---- gpt2 block ----

// ln_1 output C; q, k, v 3C; attention output C and its log-sum-exp H; first residual sum C;
// ln_2 output C; c_fc output I; its activation I; mean and rstd of two norms.
int64_t Gpt2Saved(const ModelConfig& c) {
  return 7 * c.hidden_size + 2 * c.intermediate_size + c.num_heads + 4;
}

// ---- llama block ----

int64_t QueryWidth(const ModelConfig& c) { return c.num_heads * c.head_dim; }
int64_t KvWidth(const ModelConfig& c) { return c.num_kv_heads * c.head_dim; }

// Two norm outputs 2C and first residual sum C; rotated q; k and v, repeated for all heads when
// grouped; attention output and log-sum-exp; gate, up, activation, product 4I; rstd of two norms;
// with query/key norm their inputs and rstd.
int64_t LlamaSaved(const ModelConfig& c) {
  const int64_t attention = 4 * QueryWidth(c) + c.num_heads;
  const int64_t qk_norm = c.qk_norm ? QueryWidth(c) + KvWidth(c) + c.num_heads + c.num_kv_heads : 0;
  return 3 * c.hidden_size + attention + qk_norm + 4 * c.intermediate_size + 2;
}

int64_t BlockSaved(const ModelConfig& c) {
  return c.family == Family::kGpt2 ? Gpt2Saved(c) : LlamaSaved(c);
}

// ---- What the worker's own layers hold (worker/models), in elements per token ----

struct BlockWorkspace {
  int64_t kept = 0;      // from a forward to its backward
  int64_t forward = 0;   // the most of a forward that keeps nothing
  int64_t backward = 0;  // the most of a block's forward and backward, what it keeps included
};

// Forward: qkv with the attention's output, or the norm's output with the MLP's inner values.
// Backward: all that was kept (the MLP's gradient takes the place of its activations), or in
// attention the gradients of output, q, k and v beside inputs and output.
BlockWorkspace Gpt2Workspace(const ModelConfig& c) {
  const int64_t C = c.hidden_size, I = c.intermediate_size, H = c.num_heads;
  BlockWorkspace w;
  w.kept = Gpt2Saved(c);
  w.forward = std::max(4 * C + H, C + I);
  w.backward = std::max(w.kept, 9 * C + H + 4);
  return w;
}

BlockWorkspace LlamaWorkspace(const ModelConfig& c) {
  const int64_t C = c.hidden_size, I = c.intermediate_size, H = c.num_heads;
  const int64_t q = QueryWidth(c), kv = KvWidth(c);
  // Grouped queries: attention runs in passes, each with outputs of its own.
  const int64_t pass = kv < q ? kv : 0;
  const int64_t raw = c.qk_norm ? q + kv + c.num_heads + c.num_kv_heads : 0;
  const int64_t attention = C + 2 * q + 2 * kv + raw + H;  // inputs and output
  BlockWorkspace w;
  w.kept = attention + 2 * C + 3 * I + 2;
  w.forward = std::max({C + 2 * q + 2 * kv, 2 * q + 2 * kv + pass + H, C + 2 * I});
  // Where attention is the widest, its many sizes leave holes: a quarter more.
  w.backward = std::max(w.kept + I, (attention + 2 * q + 2 * kv + 3 * pass) * 5 / 4);
  return w;
}

// Each tensor that a forward keeps, in the order of NewSaved (worker/models).
std::vector<int64_t> KeptTensors(const ModelConfig& c) {
  const int64_t C = c.hidden_size, I = c.intermediate_size, H = c.num_heads;
  if (c.family == Family::kGpt2) return {1, 1, C, 3 * C, C, H, C, 1, 1, C, I, I};
  const int64_t q = QueryWidth(c), kv = KvWidth(c), K = c.num_kv_heads;
  std::vector<int64_t> tensors = {1, C, q, kv, kv};
  if (c.qk_norm) tensors.insert(tensors.end(), {q, H, kv, K});
  tensors.push_back(q);
  for (int64_t pass = 0; pass < H / K; ++pass) tensors.push_back(K);  // log-sum-exp
  tensors.insert(tensors.end(), {C, 1, C, I, I, I});
  return tensors;
}

// The most of the workspace where what is kept lies elsewhere, as elements per token.
int64_t KeepingForward(const ModelConfig& c) {
  if (c.family == Family::kGpt2) return c.hidden_size + std::max<int64_t>(c.num_heads, 2);
  return (KvWidth(c) < QueryWidth(c) ? KvWidth(c) : QueryWidth(c)) + c.num_heads;
}
int64_t KeptBackward(const ModelConfig& c) {
  const int64_t C = c.hidden_size, I = c.intermediate_size;
  if (c.family == Family::kGpt2) return std::max(I + C, 4 * C);
  const int64_t q = QueryWidth(c), kv = KvWidth(c), pass = kv < q ? kv : 0;
  return std::max(I + C, 2 * q + 2 * kv + 4 * pass);
}

BlockWorkspace WorkspaceOf(const ModelConfig& c) {
  return c.family == Family::kGpt2 ? Gpt2Workspace(c) : LlamaWorkspace(c);
}

// Norm output and its gradient, with one chunk of logits or the gradient of the norm's input.
Bytes HeadWorkspace(const ModelConfig& c, int64_t samples, int64_t tokens) {
  const long double rows = static_cast<long double>(samples) * tokens;
  const long double chunk = std::min<long double>(rows, HeadChunkRows(c)) * c.vocab_size;
  return Saturate((rows * (2 * c.hidden_size + 2) + std::max(chunk, rows * c.hidden_size)) * 4);
}

int BlocksIn(const ModelSpec& model, LayerRange range) {
  return std::min(range.last, model.num_layers() - 2) - std::max(range.first, 1) + 1;
}

}  // namespace

int64_t HeadChunkRows(const ModelConfig& config) {
  const int64_t most = kHeadChunkBytes / 4 / config.vocab_size;
  int64_t rows = 16;
  while (rows * 2 <= most && rows < 1024) rows *= 2;
  return rows;
}

Bytes BoundaryBytes(const ModelSpec& model, int boundary, int64_t samples, int64_t tokens) {
  if (model.measured != nullptr && boundary > 0) return model.measured->Boundary(boundary, samples);
  return Elements(boundary == 0 ? 1 : model.config.hidden_size, samples, tokens);
}

Bytes LayerParameterBytes(const ModelSpec& model, int layer) {
  Bytes bytes;
  for (int use : model.layers[layer].uses) bytes += model.blocks[model.uses[use].block].size();
  return bytes;
}

double ForwardFlops(const ModelSpec& model, int layer, int64_t samples, int64_t tokens) {
  const ModelConfig& c = model.config;
  const double rows = static_cast<double>(samples) * static_cast<double>(tokens);
  const double hidden = static_cast<double>(c.hidden_size);
  switch (model.layers[layer].kind) {
    case LayerKind::kEmbedding:
      return rows * hidden;
    case LayerKind::kHead:
      return 2 * rows * hidden * static_cast<double>(c.vocab_size);
    case LayerKind::kBlock:
      break;
  }
  double weights = 0;
  for (const TensorSpec& tensor :
       model.blocks[model.uses[model.layers[layer].uses[0]].block].tensors) {
    if (tensor.shape.size() == 2) weights += static_cast<double>(tensor.elements);
  }
  // Scores and weighted sum, 2 T each, half of them masked.
  const double attention = 2.0 * static_cast<double>(tokens) * static_cast<double>(QueryWidth(c));
  return rows * (2 * weights + attention);
}

Bytes SavedActivationBytes(const ModelSpec& model, int layer, int64_t samples, int64_t tokens) {
  const ModelConfig& c = model.config;
  switch (model.layers[layer].kind) {
    case LayerKind::kEmbedding:
      return Bytes(0);
    case LayerKind::kHead:
      // Norm output, statistics and the log-probabilities, were they kept whole.
      return Elements(static_cast<long double>(c.hidden_size) + c.vocab_size + 2, samples, tokens);
    case LayerKind::kBlock:
      break;
  }
  return Elements(BlockSaved(c), samples, tokens);
}

Bytes ForwardWorkspaceBytes(const ModelSpec& model, LayerRange range, int64_t samples,
                            int64_t tokens) {
  if (model.measured != nullptr) return model.measured->ForwardWorkspace(range, samples);
  const ModelConfig& c = model.config;
  const int blocks = BlocksIn(model, range);
  if (blocks <= 0) return kFixedWorkspace;  // the embedding writes where it is bound
  // Between the blocks of the range: the boundary read and the one written.
  const int64_t inner = std::min(blocks - 1, 2) * c.hidden_size;
  return Saturate(
      static_cast<long double>(Elements(inner + WorkspaceOf(c).forward, samples, tokens).count()) +
      kFixedWorkspace.count());
}

Bytes BackwardWorkspaceBytes(const ModelSpec& model, LayerRange range, int64_t samples,
                             int64_t tokens) {
  if (model.measured != nullptr) return model.measured->BackwardWorkspace(range, samples);
  const ModelConfig& c = model.config;
  const BlockWorkspace block = WorkspaceOf(c);
  const int blocks = std::max(BlocksIn(model, range), 0);
  const bool head = range.last == model.num_layers() - 1;
  // Inputs of all blocks but a first one whose input is bound; the embedding's output is bound,
  // except in the fused task.
  long double hidden = blocks > 0 ? blocks - 1 : 0;
  if (head) hidden += (blocks > 0 ? 1 : 0) + (range.first == 0 ? 1 : 0);
  // The gradient on its way down, unless it is bound.
  if (range.count() > 1) hidden += 1;
  long double bytes = Elements(hidden * c.hidden_size, samples, tokens).count();
  if (head) {
    bytes += Elements(static_cast<long double>(blocks) * block.kept, samples, tokens).count();
    const Bytes last = HeadWorkspace(c, samples, tokens);
    const Bytes widest = Elements(block.backward - block.kept, samples, tokens);
    bytes += std::max(last, blocks > 0 ? widest : Bytes(0)).count();
  } else if (blocks > 0) {
    const long double kept = static_cast<long double>(blocks - 1) * block.kept + block.backward;
    bytes += Elements(kept, samples, tokens).count();
  }
  return Saturate(bytes + kFixedWorkspace.count());
}

namespace {

long double InSlot(long double per_token, int64_t samples, int64_t tokens) {
  return std::ceil(per_token * samples * tokens * 4 / kSlotAlignment) * kSlotAlignment;
}

long double KeptByBlock(const ModelConfig& config, int64_t samples, int64_t tokens) {
  long double bytes = 0;
  for (int64_t width : KeptTensors(config)) bytes += InSlot(width, samples, tokens);
  return bytes;
}

}  // namespace

Bytes KeptBlockBytes(const ModelConfig& config, int64_t samples, int64_t tokens) {
  return Saturate(KeptByBlock(config, samples, tokens));
}

Bytes KeptActivationBytes(const ModelSpec& model, LayerRange range, int64_t samples,
                          int64_t tokens) {
  // A backward with recompute holds all of it, too.
  if (model.measured != nullptr) return model.measured->BackwardWorkspace(range, samples);
  const ModelConfig& c = model.config;
  const int blocks = std::max(BlocksIn(model, range), 0);
  return Saturate(KeptByBlock(c, samples, tokens) * blocks +
                  InSlot(c.hidden_size, samples, tokens) * std::max(blocks - 1, 0));
}

Bytes KeptForwardWorkspaceBytes(const ModelSpec& model, LayerRange range, int64_t samples,
                                int64_t tokens) {
  if (model.measured != nullptr) return model.measured->ForwardWorkspace(range, samples);
  if (BlocksIn(model, range) <= 0) return kFixedWorkspace;
  return Elements(KeepingForward(model.config), samples, tokens) + kFixedWorkspace;
}

Bytes KeptBackwardWorkspaceBytes(const ModelSpec& model, LayerRange range, int64_t samples,
                                 int64_t tokens) {
  if (model.measured != nullptr) return model.measured->BackwardWorkspace(range, samples);
  const ModelConfig& c = model.config;
  const int blocks = BlocksIn(model, range);
  if (blocks <= 0) return kFixedWorkspace;
  // The gradient between blocks, on its way down: read and written, the first and last are bound.
  const int hidden = std::clamp(blocks - (range.first == 0 ? 0 : 1), 0, 2);
  return Elements(hidden * c.hidden_size + KeptBackward(c), samples, tokens) + kFixedWorkspace;
}

Footprint ComputeFootprint(const ModelSpec& model, int64_t global_batch, int64_t tokens,
                           int optimizer_moments) {
  Footprint footprint;
  long double weights = 0, activations = 0;
  for (const ParamBlock& block : model.blocks) weights += block.size().count();
  for (const LayerSpec& layer : model.layers) {
    activations += SavedActivationBytes(model, layer.index, global_batch, tokens).count();
    activations += BoundaryBytes(model, layer.index, global_batch, tokens).count();
  }
  footprint.weights = footprint.gradients = Saturate(weights);
  footprint.optimizer_state = Saturate(weights * optimizer_moments);
  footprint.activations = Saturate(activations);
  return footprint;
}

}  // namespace harmony
