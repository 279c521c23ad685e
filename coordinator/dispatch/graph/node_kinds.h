#pragma once

// The kinds of nodes of the work graph, and the one table that says what each of them is. A new
// kind is an enumerator, a row here, a function of CommandWriter (which writes its command) and its
// row there, and the place in StepBuilder that adds it. PURE.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "common/base/kind_table.h"
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
  NodeKind kind;
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

inline constexpr NodeTraits kNodeTraits[] = {
    {.kind = NodeKind::kInitialize,
     .name = "initialize",
     .lane = command::LaneKind::kHostIo,
     .once = true},
    {.kind = NodeKind::kLoadBatch, .name = "load_batch", .lane = command::LaneKind::kHostIo},
    {.kind = NodeKind::kLoadWeights,
     .name = "load_weights",
     .lane = command::LaneKind::kH2DBulk,
     .writes = FirstWrite::kWeights},
    {.kind = NodeKind::kPassWeights,
     .name = "pass_weights",
     .lane = command::LaneKind::kP2P,
     .writes = FirstWrite::kWeights,
     .reads = LastRead::kPeerWeights},
    {.kind = NodeKind::kBatchIn,
     .name = "batch_in",
     .lane = command::LaneKind::kH2DStream,
     .writes = FirstWrite::kInputSlot},
    {.kind = NodeKind::kStashIn,
     .name = "stash_in",
     .lane = command::LaneKind::kH2DStream,
     .writes = FirstWrite::kInputSlot},
    {.kind = NodeKind::kInputIn,
     .name = "input_in",
     .lane = command::LaneKind::kH2DStream,
     .writes = FirstWrite::kInputSlot},
    {.kind = NodeKind::kGradientIn,
     .name = "gradient_in",
     .lane = command::LaneKind::kH2DStream,
     .writes = FirstWrite::kInputSlot},
    {.kind = NodeKind::kCompute,
     .name = "compute",
     .lane = command::LaneKind::kCompute,
     .writes = FirstWrite::kOutputs,
     .reads = LastRead::kInputs},
    {.kind = NodeKind::kSend,
     .name = "send",
     .lane = command::LaneKind::kP2P,
     .writes = FirstWrite::kConsumer,
     .reads = LastRead::kOutput},
    {.kind = NodeKind::kStashOut,
     .name = "stash_out",
     .lane = command::LaneKind::kD2H,
     .reads = LastRead::kOutput},
    {.kind = NodeKind::kKeep,
     .name = "keep",
     .lane = command::LaneKind::kP2P,
     .reads = LastRead::kOutput},
    {.kind = NodeKind::kBoundaryOut,
     .name = "boundary_out",
     .lane = command::LaneKind::kD2H,
     .reads = LastRead::kOutput,
     .shares_arena = true},
    {.kind = NodeKind::kLossOut,
     .name = "loss_out",
     .lane = command::LaneKind::kD2H,
     .reads = LastRead::kLosses},
    {.kind = NodeKind::kGradientOut,
     .name = "gradient_out",
     .lane = command::LaneKind::kD2H,
     .writes = FirstWrite::kArenaGradient,
     .reads = LastRead::kGradient,
     .shares_arena = true,
     .aside = true,
     .yields = true},
    {.kind = NodeKind::kPassSum,
     .name = "pass_sum",
     .lane = command::LaneKind::kP2P,
     .writes = FirstWrite::kTaker,
     .reads = LastRead::kGradient,
     .aside = true},
    {.kind = NodeKind::kStepScalars,
     .name = "step_scalars",
     .lane = command::LaneKind::kHostCompute},
    {.kind = NodeKind::kNorm, .name = "norm", .lane = command::LaneKind::kHostCompute},
    {.kind = NodeKind::kClip, .name = "clip", .lane = command::LaneKind::kHostCompute},
    {.kind = NodeKind::kUpdate, .name = "update", .lane = command::LaneKind::kHostCompute},
    {.kind = NodeKind::kCheckpoint,
     .name = "checkpoint",
     .lane = command::LaneKind::kHostIo,
     .once = true},
};
static_assert(IsTableOf<kNodeKinds>(kNodeTraits));

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
    const bool any = std::any_of(std::begin(kNodeTraits), std::end(kNodeTraits), has);
    before[static_cast<size_t>(lane) + 1] = before[static_cast<size_t>(lane)] + int{any};
  }
  return before;
}();
// REQUIRES: there is one beside lanes of this kind.
constexpr int AsideNumber(command::LaneKind lane) {
  return kAsideBefore[static_cast<size_t>(lane)];
}
inline constexpr int kAsideQueues = kAsideBefore[command::kLaneKinds];

}  // namespace harmony::dispatch
