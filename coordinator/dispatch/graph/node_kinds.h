#pragma once

// The kinds of nodes of the work graph, and the one table that says what each of them is. A new
// kind is an enumerator, a row of TraitsOf, a function of CommandWriter (which writes its command),
// and the place in StepBuilder that adds it; the compiler names the switches that lack it. PURE.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "common/command/command.h"
#include "common/command/lane_kinds.h"

namespace harmony::dispatch {

enum class NodeKind : uint8_t {
  kInitialize,
  kLoadBatch,
  kLoadWeights,  // index: block; position: its number in the execution's list of blocks
  kPassWeights,  // the same, on from the device of the execution `weights_from`
  kBatchIn,      // index: its number in the execution's list of batch inputs
  kStashIn,      // a backward's stash
  kInputIn,      // a forward's (or the fused task's) input, by way of the host
  kGradientIn,   // a backward's output gradient, by way of the host
  kCompute,
  kSend,         // an output to the next execution, device to device (P2P), if it goes that way
  kStashOut,     // index: boundary
  kKeep,         // index: boundary; a stash to the device that keeps it, from another
  kBoundaryOut,  // input gradient to the arena
  kLossOut,
  kGradientOut,  // index: reference; position: its number in the execution's list of references
  kPassSum,      // the same: to the shard that adds it to its own, device to device
  kStepScalars,
  kNorm,  // index: block
  kClip,
  kUpdate,  // index: block
  kCheckpoint,
};
inline constexpr int kNodeKinds = static_cast<int>(NodeKind::kCheckpoint) + 1;

// The memory that a node is the first to write: it must have been given before the node is issued,
// and the command waits for whoever used the place before.
enum class FirstWrite : uint8_t {
  kNothing,
  kWeights,    // the block's item of its execution, unless the block lies in a place of its own
  kInputSlot,  // a streaming slot of its execution
  // Output slots and gradients of its execution: it needs all of the execution's memory, but for
  // buffers that only later tasks add to.
  kOutputs,
  kConsumer,      // a streaming slot of the execution that takes the output
  kTaker,         // a gradient of the execution that takes the sum
  kArenaGradient  // the gradient's slot in the arena
};

// What of its execution a node reads last: it is given back when all who read it have been issued.
enum class LastRead : uint8_t {
  kNothing,
  kInputs,       // weights and input slots; with them gradient buffers of sums that wait
  kPeerWeights,  // weights of the execution `weights_from`
  kOutput,       // an output slot
  kLosses,       // after the execution's last part
  kGradient,     // likewise
};

struct NodeTraits {
  const char* name = "";
  // That carries it; of a device lane: of the execution's device, or that of `weights_from`.
  command::LaneKind lane = command::LaneKind::kCompute;
  FirstWrite writes = FirstWrite::kNothing;
  LastRead reads = LastRead::kNothing;
  // It writes to a part of the arena that objects share, and so may have to wait for copies that
  // free records there (ArenaRecords).
  bool shares_arena = false;
  // It is issued from a queue of its own beside its lane's, when it can be: what it waits for,
  // tasks and memory of other shards, may be late, or it takes long, and what follows it in the
  // lane must not be late too.
  bool aside = false;
  // Of what can start at the same time, it lets others go first: they are smaller, and tasks wait
  // for them.
  bool yields = false;
  bool once = false;  // in a run, not in each step
};

constexpr NodeTraits MakeTraits(NodeKind kind) {
  using K = NodeKind;
  using W = FirstWrite;
  using R = LastRead;
  using L = command::LaneKind;
  switch (kind) {
    case K::kInitialize:
      return {.name = "initialize", .lane = L::kHostIo, .once = true};
    case K::kLoadBatch:
      return {.name = "load_batch", .lane = L::kHostIo};
    case K::kLoadWeights:
      return {.name = "load_weights", .lane = L::kH2DBulk, .writes = W::kWeights};
    case K::kPassWeights:
      return {
          .name = "pass_weights", .lane = L::kP2P, .writes = W::kWeights, .reads = R::kPeerWeights};
    case K::kBatchIn:
      return {.name = "batch_in", .lane = L::kH2DStream, .writes = W::kInputSlot};
    case K::kStashIn:
      return {.name = "stash_in", .lane = L::kH2DStream, .writes = W::kInputSlot};
    case K::kInputIn:
      return {.name = "input_in", .lane = L::kH2DStream, .writes = W::kInputSlot};
    case K::kGradientIn:
      return {.name = "gradient_in", .lane = L::kH2DStream, .writes = W::kInputSlot};
    case K::kCompute:
      return {.name = "compute", .lane = L::kCompute, .writes = W::kOutputs, .reads = R::kInputs};
    case K::kSend:
      return {.name = "send", .lane = L::kP2P, .writes = W::kConsumer, .reads = R::kOutput};
    case K::kStashOut:
      return {.name = "stash_out", .lane = L::kD2H, .reads = R::kOutput};
    case K::kKeep:
      return {.name = "keep", .lane = L::kP2P, .reads = R::kOutput};
    case K::kBoundaryOut:
      return {.name = "boundary_out", .lane = L::kD2H, .reads = R::kOutput, .shares_arena = true};
    case K::kLossOut:
      return {.name = "loss_out", .lane = L::kD2H, .reads = R::kLosses};
    case K::kGradientOut:
      return {.name = "gradient_out",
              .lane = L::kD2H,
              .writes = W::kArenaGradient,
              .reads = R::kGradient,
              .shares_arena = true,
              .aside = true,
              .yields = true};
    case K::kPassSum:
      return {.name = "pass_sum",
              .lane = L::kP2P,
              .writes = W::kTaker,
              .reads = R::kGradient,
              .aside = true};
    case K::kStepScalars:
      return {.name = "step_scalars", .lane = L::kHostCompute};
    case K::kNorm:
      return {.name = "norm", .lane = L::kHostCompute};
    case K::kClip:
      return {.name = "clip", .lane = L::kHostCompute};
    case K::kUpdate:
      return {.name = "update", .lane = L::kHostCompute};
    case K::kCheckpoint:
      return {.name = "checkpoint", .lane = L::kHostIo, .once = true};
  }
  return {};
}

inline constexpr std::array<NodeTraits, kNodeKinds> kNodeTraits = [] {
  std::array<NodeTraits, kNodeKinds> table{};
  for (int kind = 0; kind < kNodeKinds; ++kind) {
    table[static_cast<size_t>(kind)] = MakeTraits(static_cast<NodeKind>(kind));
  }
  return table;
}();

constexpr const NodeTraits& TraitsOf(NodeKind kind) {
  return kNodeTraits[static_cast<size_t>(kind)];
}

// The kinds of lanes that have such a queue, in the order of LaneKind: by kind, how many come
// before.
inline constexpr std::array<int, command::kLaneKinds + 1> kAsideBefore = [] {
  std::array<int, command::kLaneKinds + 1> before{};
  for (int lane = 0; lane < command::kLaneKinds; ++lane) {
    const auto has = [lane](const NodeTraits& traits) {
      return traits.aside && static_cast<int>(traits.lane) == lane;
    };
    const bool any = std::any_of(kNodeTraits.begin(), kNodeTraits.end(), has);
    before[static_cast<size_t>(lane) + 1] = before[static_cast<size_t>(lane)] + (any ? 1 : 0);
  }
  return before;
}();
// REQUIRES: there is one beside lanes of this kind.
constexpr int AsideNumber(command::LaneKind lane) {
  return kAsideBefore[static_cast<size_t>(lane)];
}
inline constexpr int kAsideQueues = kAsideBefore[command::kLaneKinds];

}  // namespace harmony::dispatch
