#pragma once

// A plan: everything the dispatcher needs to know to run the steps of a job. Made by the planner,
// stored with the job, never changed while a generation lives. PURE.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "common/base/dtype.h"
#include "common/base/units.h"
#include "common/job/job_spec.h"
#include "common/job/resolved_keys.h"
#include "common/model/model_spec.h"
#include "common/plan/device_set.h"
#include "common/plan/machine.h"

namespace harmony::plan {

struct LayerGroup {
  model::LayerRange layers;
  DeviceSet devices;
  // Backward groups only. The weights that the forward group of the same layers and devices loaded
  // stay on the devices until this backward: one load a step instead of two.
  bool keep_weights = false;
  // Backward groups only. The group's stash (its input, of every microbatch) stays on the device
  // that will read it and is not copied to the host; after a fault it is lost, and the step's
  // forward runs again as far as it is needed. Means nothing for a group that needs no stash.
  bool keep_stash = false;
  // Backward groups only. What the forward group of the same layers and devices computed on the way
  // stays on the device, of every microbatch, until this backward, which then recomputes nothing.
  // Needs keep_stash, for the group's input is the first of it, and forward tasks of one
  // microbatch, so that each backward finds its own in one place.
  bool keep_activations = false;
  // Backward groups only. A gradient leaves the devices in so many parts, each the sum of as many
  // replicas as follow each other; it divides the replicas. Where a part is of several shards,
  // their devices add it up among themselves (SumOf), and each of these shards must be an aligned
  // range of it. More parts need fewer gradient buffers on the devices, more copies to the host,
  // and more of the arena. Changes no bit of the result.
  int gradient_parts = 1;
};

struct DevicePlan {
  Bytes memory;    // the cap
  Bytes resident;  // [0, resident) holds bindings; [resident, memory) is the worker's workspace
  int root = 0;    // devices of the same one, above 0, share their link to the host
};

struct Plan {
  // The microbatches of a step are divided into that many ranges of equal length, in order; a power
  // of two. Gradients are summed as sum_tree.h says. Determines the result (of the job, never
  // changed), whatever the devices.
  int replicas = 1;
  int num_microbatches = 1;
  int64_t microbatch_size = 1;  // sequences; of backward (and fused) tasks
  // A forward task runs that many microbatches at once. Divides those of each entry of a group's
  // devices; above 1 only where LargerForwardTasksAllowed. Changes no bit of the result.
  int microbatches_per_forward_task = 1;
  int64_t sequence_length = 0;
  // Forward groups cover layers [0, backward_groups.back().layers.first); the last backward group
  // runs its forward fused with its backward. Backward groups cover all layers. Both in layer
  // order.
  std::vector<LayerGroup> forward_groups;
  std::vector<LayerGroup> backward_groups;
  job::UpdateMode update = job::UpdateMode::kEager;  // never kAuto
  std::vector<DevicePlan> devices;
  // The model's (model::ModelSpec::gradient_dtype), which the job leaves to the plan. Determines
  // the result, as the replicas do.
  DType gradient_dtype = DType::kF32;
  // Of a group's devices that share a link to the host, the first one loads weights, each of the
  // others has them from the one before it, device to device: the link carries them once.
  bool pass_weights = false;
  bool clip = false;          // global-norm clipping: norms and the coefficient before any update
  int optimizer_moments = 2;  // job::MomentsOf: AdamW 2, SGD with momentum 1

  // Double buffering of what streams through a device: slots of each kind a group's task has.
  int stream_slots = 2;
  // Eager updates: bytes of the ring that gradients pass through on the way to their update (tied
  // references have slots of their own). Not used by deferred updates.
  Bytes gradient_ring;
  // Boundary gradients of that many backward groups have room in the arena at a time, at least 2.
  // With two more than there are devices no group ever waits for one.
  int boundary_banks = 2;
  // Bytes of the arena behind the persistent objects: ArenaLayout(model, plan).dynamic_bytes().
  Bytes arena_dynamic;

  job::ResolvedKeys resolved() const { return {microbatch_size, replicas, gradient_dtype}; }
  int64_t global_batch() const { return num_microbatches * microbatch_size; }
  int num_forwards() const {
    return num_microbatches / microbatches_per_forward_task;
  }  // of each forward group
  // For one of the set's entries.
  int entry_microbatches(const LayerGroup& group) const {
    return num_microbatches / group.devices.size();
  }
  // Of boundary gradients that there are: the gradient of the first group's input is none.
  int banks() const {
    return std::min(boundary_banks, static_cast<int>(backward_groups.size()) - 1);
  }
  int replica_microbatches() const { return num_microbatches / replicas; }
  int part_microbatches(const LayerGroup& backward_group) const {
    return num_microbatches / backward_group.gradient_parts;
  }
  // The losses of a step leave the devices with the gradients of the last group, part by part; of
  // parts of several devices, each one's on its own.
  int loss_parts() const {
    const LayerGroup& last = backward_groups.back();
    return std::max(last.gradient_parts, last.devices.size());
  }
  int loss_microbatches() const { return num_microbatches / loss_parts(); }
  int64_t forward_size() const { return microbatch_size * microbatches_per_forward_task; }
};

std::string DebugString(const Plan& plan);

// What one device runs of a group: microbatches that follow each other.
struct Shard {
  int device = 0;
  int first = 0, count = 0;  // microbatches of the step
  int end() const { return first + count; }
};
// Shard number `number`, of group.devices.num_shards().
Shard ShardOf(const Plan& plan, const LayerGroup& group, int number);
// The number of the shard that a microbatch belongs to, and its device.
int ShardWith(const Plan& plan, const LayerGroup& group, int microbatch);
int DeviceOf(const Plan& plan, const LayerGroup& group, int microbatch);
// The group runs all microbatches of the shard, which is another group's, on the shard's device.
bool RunsOnDeviceOf(const Plan& plan, const LayerGroup& group, const Shard& shard);

// The shard whose device passes weights on to that of another of the same group
// (Plan::pass_weights). -1: they come from the host.
int WeightPeer(const Plan& plan, const LayerGroup& group, int shard);

// How a shard of a backward group adds up gradients.
struct ShardSum {
  // That it adds up by itself, so many at a time: a part, or all of its own where the part is of
  // several shards.
  int microbatches = 0;
  // Sums of other shards that it adds to its own in the end, the nearest one first, each of twice
  // as many microbatches as the one before, the first of as many as its own.
  int taken = 0;
  int given_to = -1;  // the shard that takes what it has then; -1: it leaves for the host
};
ShardSum SumOf(const Plan& plan, const LayerGroup& backward_group, const Shard& shard);
// The shard that gives it the sum number `number` of those that it takes.
int GiverOf(const Plan& plan, const LayerGroup& backward_group, const Shard& taker, int number);
// The group's gradients can leave in so many parts: each shard has whole parts, or an aligned range
// of one. REQUIRES: the replicas and the parts are powers of two.
bool CanAddUp(const Plan& plan, const LayerGroup& backward_group, int parts);
// The fewest parts in which the group's gradients can leave, where devices add up among themselves
// that share a link to the host, or have links of their own: a shared link then carries one of
// their sums, and the host reads one.
int FewestParts(const Plan& plan, const LayerGroup& backward_group);

// How the groups of a plan lie on the devices, in the words of the job's key `mode`: "harmony-pp"
// where each is on one device, "harmony-dp" where all are on the same several, else "mixed".
const char* ModeOf(const Plan& plan);

// InvalidArgument, naming the group, when there is none or they do not follow each other or lie on
// a device that there is not, when one keeps what it cannot keep, and when numbers do not divide
// each other.
absl::Status CheckShape(const Plan& plan);
// The same, and when it is for another model: of other layers or gradients, or with tied blocks
// whose gradients would leave in different numbers of parts.
absl::Status CheckPlan(const model::ModelSpec& model, const Plan& plan);

// The backward group of a layer. REQUIRES: groups that cover it.
const LayerGroup& BackwardGroupOf(const Plan& plan, int layer);
LayerGroup& BackwardGroupOf(Plan& plan, int layer);
// In how many parts a block's gradients leave the devices, from each group that refers to it.
inline int PartsOfBlock(const model::ModelSpec& model, const Plan& plan, int block) {
  return BackwardGroupOf(plan, model::CompletingLayer(model, block)).gradient_parts;
}

// Gradients of a tied block leave in as many parts from all groups that refer to it: the most of
// any of them.
void TieParts(const model::ModelSpec& model, Plan& plan);

// Forward tasks may run several microbatches: each one's part of a boundary begins at a slot
// boundary, so that a backward task can read its slice and kernels give it the bits it gets alone.
bool LargerForwardTasksAllowed(const model::ModelSpec& model, const Plan& plan);

// The backward group that keeps the weights a forward group loads; -1: none does.
int KeeperOf(const Plan& plan, const LayerGroup& forward_group);
// The one that keeps its activations; -1: none does.
int ActivationKeeperOf(const Plan& plan, const LayerGroup& forward_group);
// A forward group of the same layers runs on the same devices: what it loads can be kept.
bool CanKeepWeights(const Plan& plan, const LayerGroup& backward_group);
// Each device that makes the group's stash has either all that it makes to keep, or none of it:
// what it keeps is written where it stays.
bool CanKeepStash(const Plan& plan, const LayerGroup& backward_group);
// And what it computes.
bool CanKeepActivations(const Plan& plan, const LayerGroup& backward_group);

// The boundary whose tensor is kept (stashed) for the backward of a group: the first layer's input,
// or the embedding's output (boundary 1) for a group that starts with layer 0. -1 when the group
// needs none (it is the embedding alone).
int StashBoundary(const LayerGroup& group);

// A stash of a step of the plan: the boundary, and the backward group that it is for. The fused
// group's input is stashed too (unless it is the tokens): on the host, a fault then costs the
// group's own work only.
struct StashSpec {
  int boundary = 0;
  int group = 0;
  bool kept = false;  // on the devices of the group, of each shard its part; else on the host
};
using Stashes = absl::InlinedVector<StashSpec, 8>;
Stashes StashesOf(const Plan& plan);  // boundaries ascending
// Those of boundaries from `first` to `last`.
Stashes StashesOf(const Plan& plan, int first, int last);
// Few, for which a search asks again and again.
using Indices = absl::InlinedVector<int, 8>;
// The references of a range of layers, in layer order; blocks used by them, each once, in order of
// first use. `backward`: only what the backward of these layers needs.
Indices ReferencesOf(const model::ModelSpec& model, model::LayerRange layers);
Indices BlocksOf(const model::ModelSpec& model, model::LayerRange layers, bool backward);

// Bytes per step of each class that any execution of the plan must move over CPU-GPU links: the
// yardstick beside the measured counters.
struct MinimalSwap {
  Bytes weights, gradients, stash, boundary_commit;
  Bytes tokens;  // batch inputs, by every task that reads them
};
MinimalSwap ComputeMinimalSwap(const model::ModelSpec& model, const Plan& plan);

}  // namespace harmony::plan
