// What tasks take of their workspace at the most: phase by phase, as the worker's own layers
// (worker/models) allocate. The letters are those of model_cost.cc.

#include <algorithm>
#include <vector>

#include "common/model/model_spec.h"

namespace harmony {
namespace {

// Live at one time: fp32 elements per token, and bytes that do not grow with the microbatch.
struct Phase {
  int64_t per_token = 0;
  int64_t fixed = 0;
};
struct BlockPhases {
  int64_t kept = 0;                      // from a forward to its backward, per token
  std::vector<Phase> forward, backward;  // of backward: what the block itself keeps included
  // Where what is kept lies elsewhere.
  std::vector<Phase> keeping_forward, kept_backward;
};

// Rounding of each allocation, sums of biases and the like.
constexpr int64_t kSmall = 16 << 10;
// Rows of activations that exist at a time where the gated product is formed anew.
constexpr int64_t kStretch = 64;

// Buffers of LibTorch's attention kernel: it works on tiles, one set a thread.
struct Tile {
  int64_t queries, keys;
  explicit Tile(int64_t tokens)
      : queries(std::min<int64_t>(tokens, tokens >= 768   ? 256
                                          : tokens >= 192 ? 64
                                                          : 32)),
        keys(std::min<int64_t>(tokens, 512)) {}
};
int64_t AttentionBuffers(const ModelConfig& c, int64_t tokens, int threads) {
  const Tile t(tokens);
  return threads * t.queries * (t.keys + 2 + c.head_dim) * 4;
}
int64_t AttentionBackwardBuffers(int64_t tokens, int threads) {
  const Tile t(tokens);
  return threads * t.queries * (2 * t.keys + 1) * 4;
}

BlockPhases Gpt2Phases(const ModelConfig& c, int64_t tokens, int threads) {
  const int64_t C = c.hidden_size, I = c.intermediate_size, H = c.num_heads;
  const int64_t attention = AttentionBuffers(c, tokens, threads);
  BlockPhases p;
  p.kept = 7 * C + 2 * I + H + 4;
  p.forward = {{4 * C + H + 2, attention}, {C + I + 4}};
  p.backward = {{p.kept},
                {6 * C + H + 2, attention},
                {9 * C + H + 4, AttentionBackwardBuffers(tokens, threads)}};
  p.keeping_forward = {{C + 2}, {C + H, attention}};
  p.kept_backward = {{I + C}, {2 * C}, {4 * C, AttentionBackwardBuffers(tokens, threads)}};
  return p;
}

BlockPhases LlamaPhases(const ModelConfig& c, int64_t samples, int64_t tokens, int threads) {
  const int64_t C = c.hidden_size, I = c.intermediate_size, H = c.num_heads;
  const int64_t q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim;
  const int64_t pass = kv < q ? kv : 0;  // outputs of one pass of grouped queries
  const int64_t norms = c.qk_norm ? c.num_heads + c.num_kv_heads : 0;
  const int64_t raw = c.qk_norm ? q + kv + norms : 0;
  const int64_t inputs_and_output = C + 2 * q + 2 * kv + raw + H;
  const int64_t forward_buffers = AttentionBuffers(c, tokens, threads);
  BlockPhases p;
  p.kept = inputs_and_output + 2 * C + 3 * I + 2;
  p.forward = {{C + q + std::max(c.qk_norm ? q : 0, 2 * kv) + norms + 1},
               {2 * q + 2 * kv + pass + H + norms + 1, forward_buffers},
               {C + 2 * I + 2}};
  const int64_t stretch = std::min(kStretch, samples * tokens) * I * 4;
  p.backward = {{p.kept + I, stretch},
                {inputs_and_output + C + pass + 1, forward_buffers},
                {inputs_and_output + 2 * q + 2 * kv + 4 * pass + 2,
                 AttentionBackwardBuffers(tokens, threads)}};
  p.keeping_forward = {{pass > 0 ? pass + c.num_kv_heads : q + H, forward_buffers}};
  p.kept_backward = {{I + C},
                     {I, stretch},
                     {2 * q + 2 * kv + 4 * pass, AttentionBackwardBuffers(tokens, threads)}};
  return p;
}

BlockPhases PhasesOf(const ModelConfig& c, int64_t samples, int64_t tokens, int threads) {
  return c.family == Family::kGpt2 ? Gpt2Phases(c, tokens, threads)
                                   : LlamaPhases(c, samples, tokens, threads);
}

int64_t Most(const std::vector<Phase>& phases, int64_t rows) {
  int64_t most = 0;
  for (const Phase& phase : phases) {
    most = std::max(most, phase.per_token * rows * 4 + phase.fixed);
  }
  return most;
}

int64_t HeadMost(const ModelConfig& c, int64_t rows) {
  const int64_t chunk = std::min(rows, HeadChunkRows(c)) * c.vocab_size;
  return (rows * (2 * c.hidden_size + 2) + std::max(chunk, rows * c.hidden_size)) * 4;
}

int BlocksIn(const ModelSpec& model, LayerRange range) {
  return std::max(std::min(range.last, model.num_layers() - 2) - std::max(range.first, 1) + 1, 0);
}

// The gradients between blocks, on their way down; the first and the last one are bound.
int64_t GradientsUnderWay(LayerRange range, int blocks) {
  return std::clamp(blocks - (range.first == 0 ? 0 : 1), 0, 2);
}

}  // namespace

Bytes ForwardWorkspacePeak(const ModelSpec& model, LayerRange range, int64_t samples,
                           int64_t tokens, int threads) {
  const ModelConfig& c = model.config;
  const int blocks = BlocksIn(model, range);
  if (blocks == 0) return Bytes(0);  // the embedding writes where it is bound
  const int64_t rows = samples * tokens;
  // Between the blocks of the range: the boundary read and the one written.
  const int64_t inner = std::min(blocks - 1, 2) * c.hidden_size * rows * 4;
  return Bytes(inner + Most(PhasesOf(c, samples, tokens, threads).forward, rows) + kSmall);
}

Bytes BackwardWorkspacePeak(const ModelSpec& model, LayerRange range, int64_t samples,
                            int64_t tokens, int threads) {
  const ModelConfig& c = model.config;
  const int64_t rows = samples * tokens;
  const int blocks = BlocksIn(model, range);
  const bool head = range.last == model.num_layers() - 1;
  if (blocks == 0 && !head) return Bytes(kSmall);
  const BlockPhases phases = PhasesOf(c, samples, tokens, threads);
  // Inputs of all blocks but a first one whose input is bound; the embedding's output is bound,
  // except in the fused task; the gradient on its way down, unless it is bound.
  int64_t hidden = std::max(blocks - 1, 0) + (range.count() > 1 ? 1 : 0);
  if (head) hidden += (blocks > 0 ? 1 : 0) + (range.first == 0 ? 1 : 0);
  const int64_t kept = phases.kept * rows * 4;
  int64_t most = blocks > 0 ? Most(phases.backward, rows) - kept : 0;
  if (head) most = std::max(most, HeadMost(c, rows));
  return Bytes(hidden * c.hidden_size * rows * 4 + blocks * kept + most + kSmall);
}

Bytes KeptForwardWorkspacePeak(const ModelSpec& model, LayerRange range, int64_t samples,
                               int64_t tokens, int threads) {
  if (BlocksIn(model, range) == 0) return Bytes(0);
  const BlockPhases phases = PhasesOf(model.config, samples, tokens, threads);
  return Bytes(Most(phases.keeping_forward, samples * tokens) + kSmall);
}

Bytes KeptBackwardWorkspacePeak(const ModelSpec& model, LayerRange range, int64_t samples,
                                int64_t tokens, int threads) {
  const int blocks = BlocksIn(model, range);
  if (blocks == 0) return Bytes(kSmall);
  const int64_t rows = samples * tokens;
  const int64_t hidden = GradientsUnderWay(range, blocks) * model.config.hidden_size * rows * 4;
  const BlockPhases phases = PhasesOf(model.config, samples, tokens, threads);
  return Bytes(hidden + Most(phases.kept_backward, rows) + kSmall);
}

}  // namespace harmony
