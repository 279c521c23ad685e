#pragma once

// What has not been issued yet: nodes (one becomes one command), the executions they belong to, and
// the queues they wait in (QueueTable). Steps are appended by StepBuilder, in step order, and
// forgotten when they are done. PURE data; the dispatcher decides what is issued when.

#include <climits>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/base/units.h"
#include "common/command/command.h"
#include "common/model/model_spec.h"
#include "common/plan/plan.h"
#include "coordinator/dispatch/graph/boundary_way.h"
#include "coordinator/dispatch/graph/chunked_queue.h"
#include "coordinator/dispatch/graph/node_kinds.h"
#include "coordinator/dispatch/memory/region_ledger.h"

namespace harmony::dispatch {

enum class NodeState : uint8_t {
  kPending,  // will be issued
  kWayOpen,  // is issued or dropped by the way an output takes, chosen when the turn of its kSend
             // comes
  kIssued,   // `value`, `finish` are set
  kDropped,  // the output took the other way
};

using NodeId = int64_t;
using NodeIds = absl::InlinedVector<NodeId, 4>;
inline constexpr NodeId kNoNode = -1;

struct Node {
  NodeKind kind = NodeKind::kCompute;
  NodeState state = NodeState::kPending;
  int lane = 0;   // that carries it out
  int queue = 0;  // that it is issued from
  int64_t step = 0;
  int64_t execution = -1;  // number of its execution; -1: a host task
  int position = 0;        // in the execution's list of microbatches, mostly
  int index = 0;           // by kind
  int part = 0;            // kLossOut, kGradientOut, kPassSum
  int waiting_queue = -1;  // the first of the queues whose head waits for this node (QueueHeads)
  // kSend: the node at the consumer that fetches the tensor from the host instead, and the one that
  // brings it there where nothing else does.
  NodeId host_in = kNoNode, host_out = kNoNode;
  // kCompute, the last of many copies, to be issued before: of the part of the gradients before
  // this one, for the first task of a part's last replica; of the sums that the last task takes
  // from other devices. The command does not wait for them to begin, but, gradient by gradient, on
  // its way (ComputeTask::gradient_waits).
  NodeId gradient_copies = kNoNode;
  // To be issued (or dropped) before; the command waits for them.
  NodeIds deps;
  uint64_t value = 0;
  Nanos finish;  // as modelled
};

// An issued node among those that use a piece of memory.
inline void AddUser(Users& users, const Node& node) {
  users.Add(static_cast<uint32_t>(node.lane), node.value, node.finish);
}
inline Users UsersOf(const Node& node) {
  Users users;
  AddUser(users, node);
  return users;
}

// Of these copies that of the execution's reference number `reference`: they follow each other, the
// last reference's first. `last`: of the first reference.
inline NodeId CopyOf(NodeId last, int reference) { return last - reference; }

enum class ExecutionKind : uint8_t { kForward, kBackward, kFused };

// A shard of a layer group in one phase of one step, on its device.
struct GroupExecution {
  ExecutionKind kind = ExecutionKind::kForward;
  int group = 0;
  int shard = 0;
  int device = 0;
  int shard_first = 0, shard_count = 0;  // the shard's microbatches, those of the step
  int64_t step = 0;
  model::LayerRange layers;
  int task_microbatches = 1;  // microbatches that one task runs
  plan::ShardSum sum;         // of backward kinds
  // To run, ascending, counted in tasks; positions count in it.
  absl::InlinedVector<int, 16> microbatches;
  // Blocks it works with, in this order: first those it loads into its own memory, then those that
  // lie in the places of the backward group `keeper`.
  plan::Indices blocks;
  int own_blocks = 0;
  int keeper = -1;
  plan::Indices references;  // of the layers
  // Boundaries written by a forward, the group's output last.
  absl::InlinedVector<int, 2> outputs;
  // By output: it is written straight into its kept place; else where it lies in a slot of `out`.
  absl::InlinedVector<bool, 2> output_kept;
  absl::InlinedVector<Bytes, 2> output_at;
  std::vector<int> inputs;                  // batch inputs that its layers read
  absl::InlinedVector<Bytes, 2> inputs_at;  // where they lie in a slot of `in`
  int input = 0;            // the boundary that its tasks read, of a backward its stash; <= 0: none
  bool input_kept = false;  // they read it in its kept place
  bool has_input_gradient = false;
  bool has_input() const { return input > 0; }
  bool has_loss() const { return kind == ExecutionKind::kFused; }
  bool has_output_gradient() const { return kind == ExecutionKind::kBackward; }
  // Its tasks take what another execution of the step passes on, microbatch by microbatch: the
  // input, or the gradient of the output.
  bool chained() const { return has_output_gradient() || (has_input() && !input_kept); }
  int activations = -1;  // the backward group whose activations this forward leaves, or its own
  int slots = 1;         // of each streaming kind

  // Items of the device's memory: LayOutItems numbers them from 0, StepBuilder from those before.
  int64_t first_weight = 0, loss = 0, in = 0, out = 0;
  int64_t first_gradient = 0, waiting_sums = 0, end_item = 0;
  Bytes gradient_bytes;      // of one buffer of each of its gradients
  int gradient_buffers = 0;  // that each of them has
  // The position of the first task that may add to other buffers than the first ones.
  int waiting_from = INT_MAX;
  // Offsets within one slot of `in` and `out`.
  Bytes in_stride, input_at, output_gradient_at, out_stride;

  struct Position {
    NodeId compute = kNoNode, input = kNoNode;
    int64_t consumer = -1;                 // execution that takes the output (the input gradient)
    absl::InlinedVector<NodeId, 1> sends;  // one for each task of the consumer
    absl::InlinedVector<NodeId, 2> outs;   // copies of outputs to the arena and to kept places
    NodeId passed_on = kNoNode;            // of them, what brings the chained output to the arena
  };
  std::vector<Position> positions;
  std::vector<NodeId> loads;
  // The execution of the same group on another device that passes weights on to this one; -1: all
  // come from the host.
  int64_t weights_from = -1;
  int passes_left = 0;        // of its own weights, to be issued
  Users weight_users;         // of the passes that were issued, and the last task
  NodeId last_out = kNoNode;  // of the copies to the arena of its input gradients and its losses
  NodeId last_sum = kNoNode;  // of the copies of a part's gradients: to the host, or to `taker`
  int64_t taker = -1;         // the execution of the same group that takes its sums; -1: none does
  int compute_left = 0;
  int outs_left = 0;  // copies of outputs that are not resolved
  Users out_users;    // who used `out` last
  // Of what it passes on to that device; set when asked for.
  std::optional<WayDurations> way_durations;
  int way_device = -1;
};

class WorkGraph {
 public:
  explicit WorkGraph(int num_queues) : queues_(static_cast<size_t>(num_queues)) {}

  Node& node(NodeId id) { return nodes_[static_cast<size_t>(id - first_node_)]; }
  const Node& node(NodeId id) const { return nodes_[static_cast<size_t>(id - first_node_)]; }
  GroupExecution& execution(int64_t id) {
    return executions_[static_cast<size_t>(id - first_execution_)];
  }
  const GroupExecution& execution(int64_t id) const {
    return executions_[static_cast<size_t>(id - first_execution_)];
  }

  // Of a send: what takes the tensor.
  const GroupExecution& ConsumerOf(const Node& send) const;

  // Appends to the node's queue.
  NodeId Add(Node&& node);
  int64_t AddExecution(GroupExecution execution);
  void AddDep(NodeId id, NodeId dep) {
    if (dep != kNoNode) node(id).deps.push_back(dep);
  }

  // The node has been issued, and ends then, as modelled.
  void SetIssued(NodeId id, Nanos finish);
  void SetDropped(NodeId id);
  // Issued or dropped; nodes of forgotten steps have long completed.
  bool Resolved(NodeId id) const { return Forgotten(id) || FinishOf(id) != kUnresolved; }
  bool Forgotten(NodeId id) const { return id < first_node_; }
  // When an issued node ends, as modelled; 0 of a dropped one. REQUIRES: resolved, not forgotten.
  Nanos FinishOf(NodeId id) const { return finish_[static_cast<size_t>(id - first_node_)]; }

  std::deque<NodeId>& queue(int index) { return queues_[static_cast<size_t>(index)]; }
  const std::deque<NodeId>& queue(int index) const { return queues_[static_cast<size_t>(index)]; }
  int num_queues() const { return static_cast<int>(queues_.size()); }

  // Forgets nodes and executions of steps below `step`. REQUIRES: all issued and completed.
  void ForgetBefore(int64_t step);
  // Drops what is not issued of steps from `step` on.
  void CancelFrom(int64_t step);
  bool empty() const;

 private:
  static constexpr Nanos kUnresolved{std::numeric_limits<int64_t>::min()};

  ChunkedQueue<Node> nodes_;
  // By node. Each head of a queue asks this of all that it depends on: in the nodes themselves,
  // which lie far apart, that took a fifth of the time of large dry runs.
  std::vector<Nanos> finish_;
  std::deque<GroupExecution> executions_;
  NodeId first_node_ = 0;
  int64_t first_execution_ = 0;
  std::vector<std::deque<NodeId>> queues_;
};

}  // namespace harmony::dispatch
