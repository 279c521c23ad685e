#pragma once

// Appends what is left of one step to the work graph. PURE.
//
// Order within each lane follows the order of executions (forward ascending, the fused group,
// backward descending, of each group its shards) and, within an execution, of microbatches: the
// order in which one could also run them one after the other. That is why FIFO lanes and in-order
// memory cannot lock each other up.

#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/arena_layout.h"
#include "coordinator/dispatch/graph/queue_table.h"
#include "coordinator/dispatch/graph/step_progress.h"
#include "coordinator/dispatch/graph/work_graph.h"
#include "coordinator/dispatch/memory/device_memory.h"
#include "coordinator/dispatch/memory/kept_layout.h"
#include "coordinator/recovery/frontier.h"

namespace harmony::dispatch {

class StepBuilder {
 public:
  // All must outlive it. `memory`: one per device.
  StepBuilder(const model::ModelSpec& model, const plan::Plan& plan,
              const plan::ArenaLayout& layout, const KeptLayout& kept, WorkGraph& graph,
              std::vector<DeviceMemory>& memory, StepProgress& progress);

  void AddInitialize(int64_t step);
  // ResourceExhausted when a group of the plan cannot have its working set: names group, device and
  // bytes missing.
  // `checkpoint_first`: the state before this step is to be saved (the batch is loaded before that,
  // the updates wait for it).
  absl::Status AddStep(const recovery::StepWork& work, bool checkpoint_first);
  // Of the state after `step`, one of those added.
  void AddCheckpoint(int64_t step);
  // Of the step added last: by backward group, then shard; -1: does not run.
  const std::vector<std::vector<int64_t>>& backward_executions() const {
    return backward_executions_;
  }

 private:
  void AddForward(int group, int shard);
  void AddBackward(int group, int shard);
  // With its memory and its loads. The tasks of a group's shards follow when all of these are
  // there: a lane that passes weights on from one device to the next would else have that behind
  // all outputs of the first one's tasks.
  int64_t BeginExecution(GroupExecution execution);
  void AddTasks(const std::vector<int64_t>& shards);
  void AddLoads(int64_t execution_id);
  NodeId AddLoad(int64_t execution_id, int position);
  // What passes weights on to it, if that runs in this step.
  int64_t WeightSource(const GroupExecution& taker) const;
  absl::Status AddItems(GroupExecution& execution);
  void AddPosition(int64_t execution_id, int position);
  void AddInputs(int64_t execution_id, int position, absl::InlinedVector<NodeId, 8>& deps);
  void AddOutputs(int64_t execution_id, int position);
  // After the last microbatch of a part.
  void AddPartTail(int64_t execution_id, int position);
  void AddLossesOut(int64_t execution_id, int position);
  // Those that the execution takes from others: the copies come one after the other, so that it
  // waits for the last of them only, which it returns.
  NodeId SumsTaken(const GroupExecution& execution);
  // What the execution commits last: of the copies of its outputs and losses, and of its gradients,
  // which have a queue of their own.
  void AddLastCommits(const GroupExecution& execution, NodeIds& nodes) const;
  // That, and the same of those that add up a part with it, which would run again with it.
  NodeIds LastCommits(const GroupExecution& execution) const;
  void AddHostTasks(const recovery::StepWork& work);
  // Waits for the nodes in `after` and empties it.
  void AddUpdate(int block, NodeIds& after);
  void AddBankRelease(const GroupExecution& execution, int microbatch, NodeId out);
  // Of this step, what a group's shard that has the microbatch runs; -1: it does not run.
  int64_t ForwardOf(int group, int microbatch) const {
    return forward_executions_[group]
                              [plan::ShardWith(plan_, plan_.forward_groups[group], microbatch)];
  }
  int64_t BackwardOf(int group, int microbatch) const {
    return backward_executions_[group]
                               [plan::ShardWith(plan_, plan_.backward_groups[group], microbatch)];
  }
  // The execution before, whose output a task takes; -1: it does not run, or not to its end.
  int64_t ProducerOf(const GroupExecution& execution, int microbatch) const;
  // What puts a stash in its place in this step; kNoNode when it was committed before.
  NodeId StashMaker(int boundary, int microbatch) const;
  // A copy of what the task at the position has made.
  NodeId AddCopy(NodeKind kind, int64_t execution_id, int position, int index);
  bool ReachesEnd(const GroupExecution& forward) const;  // runs all layers of its group
  const plan::LayerGroup* NextGroup(const GroupExecution& execution) const;
  // The group reads the boundary where it is kept, the microbatch among others.
  bool ReadsKept(const plan::LayerGroup& reader, int boundary, int microbatch) const;
  // On the lane of its kind, of the execution's device.
  NodeId Add(NodeKind kind, int64_t execution, int position, int index,
             std::initializer_list<NodeId> deps);
  NodeId AddHost(NodeKind kind, int index, std::initializer_list<NodeId> deps) {
    return Add(kind, -1, 0, index, deps);
  }
  // The last microbatch of a sum. REQUIRES: of a backward kind.
  bool Ends(const GroupExecution& execution, int position) const {
    return (execution.microbatches[position] + 1) % execution.sum.microbatches == 0;
  }
  bool ConsumerRuns(const GroupExecution& execution, int position) const;

  const model::ModelSpec& model_;
  const plan::Plan& plan_;
  const plan::ArenaLayout& layout_;
  const KeptLayout& kept_;
  WorkGraph& graph_;
  std::vector<DeviceMemory>& memory_;
  StepProgress& progress_;
  command::LaneTable lanes_;
  QueueTable queues_;
  const bool eager_;

  int64_t step_ = 0;
  const recovery::StepWork* work_ = nullptr;
  absl::Status status_;
  // By group and shard; -1: does not run.
  std::vector<std::vector<int64_t>> forward_executions_, backward_executions_;
  std::vector<int> maker_;   // by boundary: the forward group that has the layer below it; -1: none
  std::vector<int> keeper_;  // by boundary: the backward group that keeps the stash; -1: none
  NodeId batch_ = kNoNode;
  std::vector<NodeId> losses_;
  // In this step, by shard, keeper and block.
  std::map<std::tuple<int, int, int>, NodeId> kept_loads_;
  // Across steps.
  std::vector<NodeId> last_update_;  // by block
  NodeId last_checkpoint_ = kNoNode, fused_started_ = kNoNode, initialized_ = kNoNode;
  std::array<std::pair<int64_t, NodeId>, 4> end_of_updates_;  // of the last steps, by step mod 4
};

}  // namespace harmony::dispatch
