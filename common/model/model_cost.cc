// What layers cost: operations, saved activations, workspace. Analytic, per token, in fp32
// elements; the letters are those of the shapes:
//   C hidden, I intermediate, V vocabulary, H heads, K key/value heads, D head size, T tokens

#include <algorithm>
#include <limits>

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

// Temporaries of a block's backward beside what it saved: the gradient that travels and its
// successor 2C with, at the widest point, the MLP's gradients, or those of attention (output, q, k,
// v; the joined qkv gradient; their copies in another layout).
int64_t BlockBackwardTemporaries(const ModelConfig& c) {
  return 3 * c.hidden_size + std::max(3 * c.intermediate_size, 8 * QueryWidth(c));
}

// Forward that keeps nothing: residual stream and norm output with the widest point of either half.
int64_t BlockForwardTemporaries(const ModelConfig& c) {
  const int64_t attention = 2 * (QueryWidth(c) + 2 * KvWidth(c)) + 4 * QueryWidth(c) + c.num_heads;
  return 3 * c.hidden_size + std::max(attention, 4 * c.intermediate_size);
}

// The head's norm output and its gradient, the gradient of the input, and three times one chunk of
// logits (logits, probabilities, their gradient).
Bytes HeadWorkspace(const ModelSpec& model, int64_t samples, int64_t tokens) {
  const ModelConfig& c = model.config;
  const int64_t rows = HeadChunkRows(c);
  return Elements(4 * c.hidden_size + 4, samples, tokens) +
         Saturate(static_cast<long double>(rows) * (3 * c.vocab_size + 2 * c.hidden_size) * 4);
}

}  // namespace

int64_t HeadChunkRows(const ModelConfig& config) {
  const int64_t most = kHeadChunkBytes / 4 / config.vocab_size;
  int64_t rows = 16;
  while (rows * 2 <= most && rows < 1024) rows *= 2;
  return rows;
}

Bytes BoundaryBytes(const ModelSpec& model, int boundary, int64_t samples, int64_t tokens) {
  return Elements(boundary == 0 ? 1 : model.config.hidden_size, samples, tokens);
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
  const ModelConfig& c = model.config;
  // Outputs between the layers of the range: the one read and the one written.
  Bytes inner = range.count() > 1 ? Elements(2 * c.hidden_size, samples, tokens) : Bytes(0);
  Bytes temporaries(0);
  for (int layer = range.first; layer <= range.last; ++layer) {
    Bytes need(0);
    switch (model.layers[layer].kind) {
      case LayerKind::kEmbedding:
        // Positions added, and ids widened to 64 bits.
        need = Elements(c.hidden_size + 4, samples, tokens);
        break;
      case LayerKind::kBlock:
        need = Elements(BlockForwardTemporaries(c), samples, tokens);
        break;
      case LayerKind::kHead:
        need = HeadWorkspace(model, samples, tokens);
        break;
    }
    temporaries = std::max(temporaries, need);
  }
  return Saturate(static_cast<long double>(inner.count()) + temporaries.count() +
                  kFixedWorkspace.count());
}

Bytes BackwardWorkspaceBytes(const ModelSpec& model, LayerRange range, int64_t samples,
                             int64_t tokens) {
  const ModelConfig& c = model.config;
  long double saved = 0;
  Bytes temporaries(0);
  for (int layer = range.first; layer <= range.last; ++layer) {
    Bytes need(0);
    switch (model.layers[layer].kind) {
      case LayerKind::kEmbedding:
        need = Elements(c.hidden_size + 4, samples, tokens);
        break;
      case LayerKind::kBlock:
        saved += SavedActivationBytes(model, layer, samples, tokens).count();
        need = Elements(BlockBackwardTemporaries(c), samples, tokens);
        break;
      case LayerKind::kHead:
        need = HeadWorkspace(model, samples, tokens);
        break;
    }
    temporaries = std::max(temporaries, need);
  }
  // The outputs of all layers but the last are inputs of the next, which autograd keeps too.
  saved += static_cast<long double>(Elements(c.hidden_size, samples, tokens).count()) *
           (range.count() - 1);
  return Saturate(saved + temporaries.count() + kFixedWorkspace.count());
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
