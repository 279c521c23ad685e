#pragma once

// The vocabulary between the dispatcher and those who carry its decisions out: commands on lanes,
// what they wait for and what they signal. The runtime driver turns them into wire messages, the
// simulator executes them against models. PURE values.
//
// Lanes. A lane is a strict FIFO that one thread of one process executes. Each lane has one
// timeline semaphore per generation (index = LaneTable's index); the k-th command of the lane
// signals value k when it has completed, its commit included. A command waits, to begin or on its
// way, only for commands that were issued before it, so a set of FIFO lanes can never deadlock.

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/units.h"
#include "common/command/objects.h"
#include "common/model/gradient_times.h"

namespace harmony::command {

enum class LaneKind : uint8_t {
  kCompute,      // worker of a device
  kH2DBulk,      // weights; swapper
  kH2DStream,    // activations, tokens, labels; swapper
  kD2H,          // gradients, stashes, boundary gradients, losses; swapper
  kP2P,          // outgoing copies of a device; swapper
  kHostCompute,  // norms, clip, updates; host worker
  kHostIo,       // batches, initialisation, checkpoints; host worker
};

struct Lane {
  LaneKind kind = LaneKind::kCompute;
  int device = 0;  // 0 for the host lanes
  auto operator<=>(const Lane&) const = default;
};
std::string DebugString(const Lane& lane);
// Whether it is the host worker's, not a device's.
bool IsHostLane(const Lane& lane);

// Lanes of a machine with `num_devices` devices, densely numbered; the number is the semaphore's
// index.
class LaneTable {
 public:
  explicit LaneTable(int num_devices) : num_devices_(num_devices) {}
  int size() const;
  int IndexOf(const Lane& lane) const;
  Lane LaneAt(int index) const;
  int num_devices() const { return num_devices_; }

 private:
  int num_devices_;
};

struct SemaphoreWait {
  uint32_t semaphore = 0;
  uint64_t value = 0;
  auto operator<=>(const SemaphoreWait&) const = default;
};

// What all commands have.
struct CommandHeader {
  uint64_t id = 0;  // unique within a job and generation, ascending in issue order
  uint32_t lane = 0;
  uint64_t signal_value = 0;
  std::vector<SemaphoreWait> waits;
  int64_t step = 0;  // index of the optimizer step, from 0
  Nanos expected;    // modelled duration, 0 when unknown; pacing and deadlines derive from it
};

// ---- Compute (workers) ----

enum class TaskKind : uint8_t { kForward, kBackward, kForwardBackward };

struct WeightBinding {
  int reference = 0;
  Bytes offset;  // in the device's region
};
struct OutputBinding {
  int boundary = 0;
  Bytes offset;
};

struct InputBinding {
  int input = 0;  // number of the batch input
  Bytes offset;
};

struct ComputeTask {
  TaskKind kind = TaskKind::kForward;
  model::LayerRange layers;
  int microbatch =
      0;  // forward: counted in what a forward task runs (Plan::microbatches_per_forward_task)
  int64_t samples = 0;  // sequences that the task runs
  std::vector<WeightBinding> weights;
  std::vector<WeightBinding> gradients;  // backward kinds; the first buffer of each
  // From one buffer of a gradient to the next, for all of them; negative where the next one lies
  // before.
  Bytes gradient_stride;
  // One for each of `gradients`, or none. A task begins without, and waits on its way. All are of
  // one lane, in the order in which a backward comes to them, the last reference's first.
  std::vector<SemaphoreWait> gradient_waits;
  // kBuffers: until the sum of the part before has left the buffers that it adds to. kSums: until
  // the sums of other devices that it adds to its own lie in the buffers before its own.
  model::Awaited awaited = model::Awaited::kBuffers;
  // The number of its replica among those that the device adds up, those in the sums that it takes
  // from other devices included (plan::SumOf); it says which of the buffers the task adds to
  // (model/sum_tree.h). The replica's first microbatch sets the buffer; after the last one the
  // buffer is added to the sums that wait for it.
  int replica = 0;
  bool first_microbatch = false;
  bool last_microbatch = false;
  // The part's sum is complete after it: then it is stored in the form in which it leaves the
  // device, and checked to be finite.
  bool stores_gradients = false;
  // Forward: boundary layers.first. Backward: the stash, boundary StashBoundary(group).
  std::optional<Bytes> input;
  // KeptActivationBytes of the layers. Forward: what the backward needs is left here. Backward: the
  // forward left it here, nothing is recomputed; the task destroys it.
  std::optional<Bytes> kept;
  std::vector<OutputBinding> outputs;    // forward: boundaries to write, the group's output last
  std::optional<Bytes> output_gradient;  // backward but not fused
  std::optional<Bytes> input_gradient;   // backward kinds; none when the group has layer 0
  std::vector<InputBinding> inputs;      // the batch inputs that its layers read, ascending
  std::optional<Bytes> loss;             // fused: a LossSlot
  int64_t total_labels = 0;              // of the global batch: gradients are of the mean over it
};

// ---- Transfers (swapper) ----

enum class TrafficClass : uint8_t {
  kWeights,
  kGradients,
  kStash,
  kBoundaryCommit,
  kBoundary,  // and all that goes from device to device
  kTokens,
  kLoss,
  kRecovery,
};
const char* ToString(TrafficClass traffic);

struct Endpoint {
  int device = -1;  // -1: the host arena
  Bytes offset;
};

// After the bytes are in place the swapper writes the record: offset, size, key, then (version,
// clean).
struct Commit {
  int record = 0;
  ObjectKey key;
  uint64_t version = 0;
};

// A record that must hold this version (clean) when the copy starts; else the copy is refused.
struct Expect {
  int record = 0;
  uint64_t version = 0;
};

struct Transfer {
  Endpoint source, destination;
  Bytes size;
  TrafficClass traffic = TrafficClass::kWeights;
  std::optional<Commit> commit;  // D2H into an object
  std::optional<Expect> expect;  // H2D from an object
  // Records whose data this copy will overwrite: set free before the first byte is written. Only
  // records that the swapper writes (gradients, stashes, boundary gradients, losses). A copy with a
  // commit always names the record that it commits, too: between the first byte and the commit no
  // record claims the slot.
  std::vector<int> retire;
};

// ---- Host tasks (host worker) ----

enum class HostTaskKind : uint8_t {
  kInitialize,   // io: parameters and moments of all blocks from init, a checkpoint or a model
                 // directory
  kLoadBatch,    // io: tokens and labels of a step into the batch object of its parity
  kStepScalars,  // compute: sums losses (all must be finite), learning rate; commits the step's
                 // scalars
  kNorm,         // compute: squared gradient norm of one block, fp64
  kClip,         // compute: norms -> clip coefficient, into the step's scalars
  kUpdate,       // compute: one block, (w, m, v)(t) -> (t+1); resumes where its cursors say
  kCheckpoint,   // io: writes a checkpoint after the step's updates
};

struct HostTask {
  HostTaskKind kind = HostTaskKind::kLoadBatch;
  int block = -1;  // norm, update
  Bytes offset;    // batch, scalars, norm: where in the arena the object is (to be) placed
  // Norm, update: last reference first, of each reference its parts ascending.
  std::vector<int> gradient_records;
  // kUpdate commits version step+1; kCheckpoint saves version step+1 ("checkpoint-<step+1>").
};

struct Command {
  CommandHeader header;
  std::variant<ComputeTask, Transfer, HostTask> body;
};
std::string DebugString(const Command& command);

// REQUIRES: of a backward kind.
model::BackwardTask BackwardTaskOf(const ComputeTask& task);

// All that a command waits for before it is complete: to begin, or on its way.
std::vector<SemaphoreWait> AllWaits(const Command& command);

}  // namespace harmony::command
