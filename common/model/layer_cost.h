#pragma once

// What a layer costs, by values: operations, saved activations, workspace. Where the figures come
// from (an architecture's shapes, an exported graph, measurements) shows nowhere. PURE.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/units.h"

namespace harmony::model {

// Sums of sizes stop here: absurd jobs must still compare as "too large".
inline constexpr Bytes kMostBytes{INT64_C(1) << 60};

// `size` of one, of `count` of them: at most kMostBytes. REQUIRES: neither is negative.
constexpr Bytes TimesSaturated(Bytes size, int64_t count) {
  int64_t product = 0;
  const bool overflow = __builtin_mul_overflow(size.count(), count, &product);
  return overflow || product > kMostBytes.count() ? kMostBytes : Bytes(product);
}
constexpr Bytes SumSaturated(Bytes a, Bytes b) {
  return a.count() + b.count() > kMostBytes.count() ? kMostBytes : a + b;
}

// A size as a function of the number of samples that a task runs.
struct BytesBySamples {
  // What is alive at one time: a sum of its parts.
  struct Phase {
    Bytes per_sample;
    Bytes fixed;
    Bytes per_thread;  // buffers that each compute thread has of its own
    // A part that grows with the samples up to a bound: a chunk of logits, a stretch of rows.
    Bytes capped_per_sample, cap;
  };
  // The size is that of the largest phase; without any it is zero.
  std::vector<Phase> phases;
  // Or sizes that are known for some numbers of samples only, ascending by these; any other number
  // of samples was not measured and counts as kMostBytes, which fits nowhere.
  std::vector<std::pair<int64_t, Bytes>> table;

  // One phase of these parts.
  static BytesBySamples Of(Bytes per_sample, Bytes fixed = Bytes());

  Bytes At(int64_t samples, int threads = 1) const;
};

// What the capped workspace of a device worker holds of a layer, beside the tensors that cross
// boundaries.
struct LayerWorkspace {
  // A forward that keeps nothing.
  BytesBySamples forward;
  // In a task that recomputes: what the layer's forward leaves for its backward; and the most of
  // its forward and backward, that included. The last layer's are of its fused task.
  BytesBySamples kept, backward;
  // Where what is kept lies elsewhere (LayerGroup::keep_activations).
  BytesBySamples keeping_forward, kept_backward;

  // The same with what each of so many threads has for its own.
  LayerWorkspace WithThreads(int threads) const;
};

// Where the task of a layer's backward does its forward again.
enum class Recompute {
  kNever,       // nowhere: an embedding's backward needs nothing, the last layer runs fused
  kUnlessKept,  // where its group keeps no activations
  // There as well: what it saves is not kept, for its forward has effects that belong to the task
  // of the backward (statistics), or a place of its own there (the first layer of an exported
  // model).
  kAlways,
};

// Equal layers share one.
struct LayerCost {
  std::string name;  // for people and files: "embedding", "block", "head"
  // What the layer computes, so that equal texts mean equal times on one machine: an architecture
  // with its shapes and switches, or the digest of an exported graph.
  std::string work;
  double forward_flops = 0;  // of one sample; a multiply-add counts as two
  // What autograd would keep of one sample were nothing recomputed, the layer's input not included.
  Bytes saved_per_sample;
  Recompute recompute = Recompute::kNever;
  // Recompute::kUnlessKept: the tensors that a forward leaves for its backward in a place of their
  // own, in the order that the layer's code expects.
  std::vector<BytesBySamples> kept_tensors;
  // A bound that no task exceeds, with room for holes between allocations; and what a task is
  // expected to hold at its peak: never less than it does, and hardly more.
  LayerWorkspace bound, expected;
  // Beside either, what a backward holds on a GPU (ModelSpec::on_gpus).
  BytesBySamples gpu_sums;
};

// What fused attention adds the gradients of its queries up in on a GPU. In 16 bits that is a copy
// in fp32 of some samples and heads for every multiprocessor, at most kMostMultiprocessors and one
// of all (LibTorch's flash_attn/flash_api.cpp); in fp32 it is one of all, and `of_head` none.
// `of_sample`: all heads' bytes in fp32, `of_head`: of one sample.
BytesBySamples GpuAttentionSums(Bytes of_sample, Bytes of_head);
// Of a GPU. One with more computes attention in pieces.
inline constexpr int kMostMultiprocessors = 192;

}  // namespace harmony::model
