// Analytic, in numbers per token of the type of the activations; the letters are those of the
// shapes:
//   C hidden, I intermediate, V vocabulary, H heads, K key/value heads, D head size, T tokens

#include "common/model/families/transformer_costs.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/dtype.h"
#include "common/model/families/causal_lm.h"
#include "common/model/gpu_attention.h"
#include "common/model/loss_chunks.h"
#include "common/model/model_sizes.h"

namespace harmony::model {
namespace {

using Phase = BytesBySamples::Phase;

// Of logits that the head has at a time. Results depend on where it cuts (LossChunkRows).
constexpr Bytes kHeadChunk = MiB(64);

// Of the bounds: block-wise buffers of the attention kernel and the allocator's rounding, whatever
// the shape. Of the expected peaks: rounding of each allocation, sums of biases and the like.
constexpr Bytes kBoundMargin = MiB(4), kPeakMargin = KiB(16);

// Rows of activations that exist at a time where the gated product is formed anew: kStretch in
// worker/models/cpu_primitives.cc.
constexpr int64_t kStretchRows = 64;

// What sizes follow from.
struct Shapes : ModelConfig {
  DType activations = DType::kF32;

  Bytes Numbers(int64_t count) const { return SizeOf(activations) * count; }
  // Statistics of norms and of attention, which are fp32, as so many numbers of activations.
  int64_t Statistics(int64_t count) const {
    return count * (SizeOf(DType::kF32).count() / SizeOf(activations).count());
  }
  bool narrow() const { return activations != DType::kF32; }
};
Shapes ShapesOf(const ModelConfig& config, DType activations) { return {config, activations}; }

int64_t QueryWidth(const Shapes& c) { return c.num_heads * c.head_dim; }
int64_t KvWidth(const Shapes& c) { return c.num_kv_heads * c.head_dim; }
// Grouped queries: attention runs in passes, each with outputs of its own, this wide.
int64_t PassWidth(const Shapes& c) { return KvWidth(c) < QueryWidth(c) ? KvWidth(c) : 0; }

// What products of bf16 take besides their operands, as measured with oneDNN for AMX, AVX512-BF16
// and without either: panels of its own for each thread, at most so large; and (worker/models/gemm)
// the part of a product that is on its way into a gradient of fp32.
constexpr Bytes kMostPanels = KiB(1400);
constexpr int64_t kRowsBeside = 256, kColumnsBeside = 4096;

int64_t WidestInner(const Shapes& c) {
  return std::max({3 * c.hidden_size, c.intermediate_size, QueryWidth(c)});
}
Bytes ProductPanels(const Shapes& c, int64_t tokens) {
  if (!c.narrow()) return Bytes();
  const int64_t inner = WidestInner(c);
  // They are as large as the operands while these are small; of gradients' products, whose rows are
  // those of a microbatch, for so many samples.
  constexpr int64_t kSamples = 16;
  const Bytes of_operands = c.Numbers(8 * c.hidden_size * inner) +
                            c.Numbers(std::min(kRowsBeside, inner) * kSamples * tokens);
  // Or the rows that our own kernels widen, a few for each thread.
  const Bytes rows = SizeOf(DType::kF32) * std::max(4 * inner, c.vocab_size);
  return std::max(rows, std::min(kMostPanels, KiB(64) + of_operands));
}
// With the copies in fp32 of a norm's parameters.
Bytes BesideGradients(const Shapes& c) {
  if (!c.narrow()) return Bytes();
  return c.Numbers(kRowsBeside * std::min(kColumnsBeside, WidestInner(c))) +
         SizeOf(DType::kF32) * (2 * c.hidden_size);
}

// Phases of a model's layer, from numbers per token.
class PerToken {
 public:
  // `least_per_thread`: of all phases.
  PerToken(const Shapes& shapes, int64_t sequence_length, Bytes margin,
           Bytes least_per_thread = Bytes())
      : shapes_(shapes),
        tokens_(sequence_length),
        margin_(margin + BesideGradients(shapes)),
        panels_(std::max(ProductPanels(shapes, sequence_length), least_per_thread)) {}

  Phase Of(int64_t per_token, Bytes per_thread = Bytes()) const {
    return {shapes_.Numbers(per_token * tokens_), margin_, std::max(per_thread, panels_), Bytes(),
            Bytes()};
  }
  // With so many numbers of so many rows, at the most.
  Phase WithRows(int64_t per_token, int64_t width, int64_t rows) const {
    Phase phase = Of(per_token);
    phase.capped_per_sample = shapes_.Numbers(width * tokens_);
    phase.cap = shapes_.Numbers(width * rows);
    return phase;
  }
  // What stays beside other phases has no margin of its own.
  BytesBySamples Kept(int64_t per_token) const {
    return BytesBySamples::Of(shapes_.Numbers(per_token * tokens_));
  }

 private:
  const Shapes& shapes_;
  int64_t tokens_;
  Bytes margin_, panels_;
};

// Buffers of LibTorch's attention kernel: it works on tiles, one set a thread.
struct Tile {
  int64_t queries, keys;
  explicit Tile(int64_t tokens)
      : queries(std::min<int64_t>(tokens, tokens >= 768   ? 256
                                          : tokens >= 192 ? 64
                                                          : 32)),
        keys(std::min<int64_t>(tokens, 512)) {}
};
// In bf16 the scores are rounded into a second set, and values are reordered in tiles of 64.
Bytes AttentionBuffers(const Shapes& c, int64_t tokens) {
  const Tile t(tokens);
  const int64_t rounded = c.narrow() ? t.keys * (t.queries + 64) : 0;
  return SizeOf(DType::kF32) * (t.queries * (t.keys + 2 + c.head_dim)) + c.Numbers(rounded);
}
Bytes AttentionBackwardBuffers(const Shapes& c, int64_t tokens) {
  const Tile t(tokens);
  const Bytes panels = c.narrow() ? std::min(KiB(450), c.Numbers(8 * t.queries * t.keys)) : Bytes();
  return SizeOf(DType::kF32) * (t.queries * (2 * t.keys + 1)) +
         c.Numbers(c.narrow() ? 2 * t.queries * t.keys : 0) + panels;
}
// Of a bound in bf16, for each thread; in fp32 the margin has them.
Bytes MostAttentionBuffers(const Shapes& c, int64_t tokens) {
  if (!c.narrow()) return Bytes();
  return std::max(AttentionBuffers(c, tokens), AttentionBackwardBuffers(c, tokens));
}
// Keys and values of a pass, which the forward in bf16 reorders where the processor multiplies
// tiles.
int64_t Reordered(const Shapes& c) { return c.narrow() ? 2 * KvWidth(c) : 0; }
// Sums in fp32 of gradients of keys and values over the passes: as much again as in bf16.
int64_t WideSums(const Shapes& c) { return c.narrow() && PassWidth(c) > 0 ? 2 * KvWidth(c) : 0; }

// ---- gpt2 block ----

// ln_1 output C; q, k, v 3C; attention output C and its log-sum-exp H; first residual sum C;
// ln_2 output C; c_fc output I; its activation I; mean and rstd of two norms.
int64_t Gpt2Saved(const Shapes& c) {
  return 7 * c.hidden_size + 2 * c.intermediate_size + c.Statistics(c.num_heads + 4);
}

// Forward: qkv with the attention's output, or the norm's output with the MLP's inner values.
// Backward: all that was kept (the MLP's gradient takes the place of its activations), or in
// attention the gradients of output, q, k and v beside inputs and output.
LayerWorkspace Gpt2Bound(const Shapes& c, int64_t tokens) {
  const int64_t C = c.hidden_size, I = c.intermediate_size, H = c.Statistics(c.num_heads);
  const int64_t norm = c.Statistics(2);
  const PerToken size(c, tokens, kBoundMargin, MostAttentionBuffers(c, tokens));
  LayerWorkspace w;
  w.forward.phases = {size.Of(std::max(4 * C + H + Reordered(c), C + I))};
  w.kept = size.Kept(Gpt2Saved(c));
  w.backward.phases = {size.Of(std::max(Gpt2Saved(c), 9 * C + H + 2 * norm))};
  w.keeping_forward.phases = {size.Of(C + std::max(H + Reordered(c), norm))};
  w.kept_backward.phases = {size.Of(std::max(I + C, 4 * C))};
  return w;
}

LayerWorkspace Gpt2Expected(const Shapes& c, int64_t tokens) {
  const int64_t C = c.hidden_size, I = c.intermediate_size, H = c.Statistics(c.num_heads);
  const int64_t norm = c.Statistics(2);
  const Bytes attention = AttentionBuffers(c, tokens);
  const Bytes attention_backward = AttentionBackwardBuffers(c, tokens);
  const PerToken size(c, tokens, kPeakMargin);
  LayerWorkspace w;
  w.forward.phases = {size.Of(4 * C + H + norm + Reordered(c), attention),
                      size.Of(C + I + 2 * norm)};
  w.kept = size.Kept(Gpt2Saved(c));
  w.backward.phases = {size.Of(Gpt2Saved(c)), size.Of(6 * C + H + norm + Reordered(c), attention),
                       size.Of(9 * C + H + 2 * norm, attention_backward)};
  w.keeping_forward.phases = {size.Of(C + norm), size.Of(C + H + Reordered(c), attention)};
  w.kept_backward.phases = {size.Of(I + C), size.Of(2 * C), size.Of(4 * C, attention_backward)};
  return w;
}

// ---- llama block ----

// Query/key norm: the inputs of it and its rstd.
int64_t QkNormSaved(const Shapes& c) {
  return c.qk_norm ? QueryWidth(c) + KvWidth(c) + c.Statistics(c.num_heads + c.num_kv_heads) : 0;
}

// Two norm outputs 2C and first residual sum C; rotated q; k and v, repeated for all heads when
// grouped; attention output and log-sum-exp; gate, up, activation, product 4I; rstd of two norms.
int64_t LlamaSaved(const Shapes& c) {
  const int64_t attention = 4 * QueryWidth(c) + c.Statistics(c.num_heads);
  return 3 * c.hidden_size + attention + QkNormSaved(c) + 4 * c.intermediate_size + c.Statistics(2);
}

// Inputs and output of the attention.
int64_t LlamaAttention(const Shapes& c) {
  return c.hidden_size + 2 * QueryWidth(c) + 2 * KvWidth(c) + QkNormSaved(c) +
         c.Statistics(c.num_heads);
}
int64_t LlamaKept(const Shapes& c) {
  return LlamaAttention(c) + 2 * c.hidden_size + 3 * c.intermediate_size + c.Statistics(2);
}

LayerWorkspace LlamaBound(const Shapes& c, int64_t tokens) {
  const int64_t C = c.hidden_size, I = c.intermediate_size, H = c.Statistics(c.num_heads);
  const int64_t q = QueryWidth(c), kv = KvWidth(c), pass = PassWidth(c), kept = LlamaKept(c);
  const PerToken size(c, tokens, kBoundMargin, MostAttentionBuffers(c, tokens));
  LayerWorkspace w;
  w.forward.phases = {
      size.Of(std::max({C + 2 * q + 2 * kv, 2 * q + 2 * kv + pass + H + Reordered(c), C + 2 * I}))};
  w.kept = size.Kept(kept);
  // Where attention is the widest, its many sizes leave holes: a quarter more.
  const int64_t attention = (LlamaAttention(c) + 2 * q + 2 * kv + 3 * pass + WideSums(c)) * 5 / 4;
  w.backward.phases = {size.Of(std::max({kept, kept + I, attention}))};
  w.keeping_forward.phases = {size.Of(std::min(kv, q) + H + Reordered(c))};
  w.kept_backward.phases = {size.Of(std::max(I + C, 2 * q + 2 * kv + 4 * pass + WideSums(c)))};
  return w;
}

LayerWorkspace LlamaExpected(const Shapes& c, int64_t tokens) {
  const int64_t C = c.hidden_size, I = c.intermediate_size, H = c.Statistics(c.num_heads);
  const int64_t q = QueryWidth(c), kv = KvWidth(c), pass = PassWidth(c), kept = LlamaKept(c);
  const int64_t norm = c.Statistics(1);
  const int64_t norms = c.qk_norm ? c.Statistics(c.num_heads + c.num_kv_heads) : 0;
  const Bytes attention = AttentionBuffers(c, tokens);
  const Bytes attention_backward = AttentionBackwardBuffers(c, tokens);
  const PerToken size(c, tokens, kPeakMargin);
  LayerWorkspace w;
  w.forward.phases = {size.Of(C + q + std::max(c.qk_norm ? q : 0, 2 * kv) + norms + norm),
                      size.Of(2 * q + 2 * kv + pass + H + norms + norm + Reordered(c), attention),
                      size.Of(C + 2 * I + 2 * norm)};
  w.kept = size.Kept(kept);
  w.backward.phases = {
      size.WithRows(kept + I, I, kStretchRows),
      size.Of(LlamaAttention(c) + C + pass + norm + Reordered(c), attention),
      size.Of(LlamaAttention(c) + 2 * q + 2 * kv + 4 * pass + 2 * norm + WideSums(c),
              attention_backward)};
  w.keeping_forward.phases = {
      size.Of((pass > 0 ? pass + c.Statistics(c.num_kv_heads) : q + H) + Reordered(c), attention)};
  w.kept_backward.phases = {size.Of(I + C), size.WithRows(I, I, kStretchRows),
                            size.Of(2 * q + 2 * kv + 4 * pass + WideSums(c), attention_backward)};
  return w;
}

// ---- All families ----

int64_t Up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

// Grouped queries in 16 bits: gradients by keys and values exist for each head of queries. In fp32
// they are computed in pieces, and others add up in one copy of all (mem_eff_attention of
// LibTorch).
BytesBySamples AttentionSums(const Shapes& c, int64_t tokens) {
  if (tokens < kLeastFusedRows) return {};
  const bool grouped = PassWidth(c) > 0;
  const Bytes of_head = SizeOf(DType::kF32) * (Up(tokens, 128) * Up(c.head_dim, 64));
  if (c.narrow()) return GpuAttentionSums(of_head * (c.num_heads * (grouped ? 2 : 1)), of_head);
  return grouped ? BytesBySamples() : GpuAttentionSums(of_head * c.num_heads, Bytes());
}

// Each tensor that a forward keeps, in the order of NewSaved (worker/models).
std::vector<int64_t> KeptTensors(const Shapes& c) {
  const int64_t C = c.hidden_size, I = c.intermediate_size, H = c.Statistics(c.num_heads);
  const int64_t one = c.Statistics(1);
  if (c.family == Family::kGpt2) return {one, one, C, 3 * C, C, H, C, one, one, C, I, I};
  const int64_t q = QueryWidth(c), kv = KvWidth(c), K = c.Statistics(c.num_kv_heads);
  std::vector<int64_t> tensors = {one, C, q, kv, kv};
  if (c.qk_norm) tensors.insert(tensors.end(), {q, H, kv, K});
  tensors.push_back(q);
  for (int64_t pass = 0; pass < c.num_heads / c.num_kv_heads; ++pass)
    tensors.push_back(K);  // log-sum-exp
  tensors.insert(tensors.end(), {C, one, C, I, I, I});
  return tensors;
}

std::vector<BytesBySamples> KeptSizes(const Shapes& c, int64_t tokens) {
  std::vector<BytesBySamples> sizes;
  for (int64_t width : KeptTensors(c)) {
    sizes.push_back(BytesBySamples::Of(c.Numbers(width * tokens)));
  }
  return sizes;
}

// Norm output and its gradient, with one chunk of logits or the gradient of the norm's input.
LayerWorkspace HeadWorkspace(const Shapes& c, int64_t tokens, Bytes margin) {
  const int64_t C = c.hidden_size;
  const PerToken size(c, tokens, margin);
  LayerWorkspace w;
  w.backward.phases = {size.WithRows(2 * C + c.Statistics(2), c.vocab_size, HeadChunkRows(c)),
                       size.Of(3 * C + c.Statistics(2))};
  return w;
}

// Multiply-adds of a token with the weights of a block, biases not counted.
double BlockWeights(const Shapes& c) {
  const auto C = static_cast<double>(c.hidden_size), I = static_cast<double>(c.intermediate_size);
  if (c.family == Family::kGpt2) return 4 * C * C + 2 * C * I;
  const auto q = static_cast<double>(QueryWidth(c)), kv = static_cast<double>(KvWidth(c));
  return 2 * C * q + 2 * C * kv + 3 * C * I;
}

LayerCost Named(const char* name, const Shapes& c, int64_t tokens) {
  LayerCost cost;
  cost.name = name;
  cost.work = absl::StrCat(
      name, " family ", static_cast<int>(c.family), " vocabulary ", c.vocab_size, " hidden ",
      c.hidden_size, " heads ", c.num_heads, "/", c.num_kv_heads, "x", c.head_dim, " inner ",
      c.intermediate_size, " activation ", static_cast<int>(c.activation), " tied ",
      c.tie_word_embeddings, " bias ", c.qkv_bias, c.attention_output_bias, c.mlp_bias, " qk_norm ",
      c.qk_norm, " sequence ", tokens, c.activations == DType::kF32 ? "" : " in ",
      c.activations == DType::kF32 ? "" : ToString(c.activations));
  return cost;
}

}  // namespace

int64_t HeadChunkRows(const ModelConfig& config) {
  return LossChunkRows(config.vocab_size, kHeadChunk);
}

Bytes KeptBlockBytes(const ModelConfig& config, DType activations, int64_t samples,
                     int64_t tokens) {
  LayerCost cost;
  cost.kept_tensors = KeptSizes(ShapesOf(config, activations), tokens);
  return KeptTensorBytes(cost, samples);
}

// It writes where its output is bound.
LayerCost EmbeddingCost(const ModelConfig& config, int64_t tokens, DType activations) {
  const Shapes c = ShapesOf(config, activations);
  LayerCost cost = Named("embedding", c, tokens);
  cost.forward_flops = static_cast<double>(tokens) * static_cast<double>(c.hidden_size);
  cost.saved_per_sample = SizeOf(DType::kI32) * tokens;  // the token ids
  const BytesBySamples margin = BytesBySamples::Of(Bytes(), kBoundMargin);
  cost.bound = {margin, {}, margin, margin, margin};
  cost.expected.backward = cost.expected.kept_backward = BytesBySamples::Of(Bytes(), kPeakMargin);
  return cost;
}

LayerCost BlockCost(const ModelConfig& config, int64_t tokens, DType activations) {
  const Shapes c = ShapesOf(config, activations);
  const bool gpt2 = c.family == Family::kGpt2;
  LayerCost cost = Named("block", c, tokens);
  cost.recompute = Recompute::kUnlessKept;
  // Scores and weighted sum, 2 T each, half of them masked.
  const double attention = 2.0 * static_cast<double>(tokens) * static_cast<double>(QueryWidth(c));
  cost.forward_flops = static_cast<double>(tokens) * (2 * BlockWeights(c) + attention);
  cost.saved_per_sample = c.Numbers((gpt2 ? Gpt2Saved(c) : LlamaSaved(c)) * tokens);
  cost.kept_tensors = KeptSizes(c, tokens);
  cost.bound = gpt2 ? Gpt2Bound(c, tokens) : LlamaBound(c, tokens);
  cost.expected = gpt2 ? Gpt2Expected(c, tokens) : LlamaExpected(c, tokens);
  cost.gpu_sums = AttentionSums(c, tokens);
  return cost;
}

LayerCost HeadCost(const ModelConfig& config, int64_t tokens, DType activations) {
  const Shapes c = ShapesOf(config, activations);
  LayerCost cost = Named("head", c, tokens);
  cost.forward_flops = 2 * static_cast<double>(tokens) * static_cast<double>(c.hidden_size) *
                       static_cast<double>(c.vocab_size);
  // Norm output, statistics and the log-probabilities, were they kept whole.
  cost.saved_per_sample = c.Numbers((c.hidden_size + c.vocab_size + c.Statistics(2)) * tokens);
  cost.bound = HeadWorkspace(c, tokens, kBoundMargin);
  cost.expected = HeadWorkspace(c, tokens, kPeakMargin);
  return cost;
}

}  // namespace harmony::model
