#pragma once

// Appends what is left of one step to the work graph. PURE.
//
// Order within each lane follows the order of visits (forward ascending, the fused group, backward
// descending, of each group its shares) and, within a visit, of microbatches: the order in which
// one could also run them one after the other. That is why FIFO lanes and in-order memory cannot
// lock each other up.

#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/arena_layout.h"
#include "coordinator/core/device_memory.h"
#include "coordinator/core/frontier.h"
#include "coordinator/core/kept_layout.h"
#include "coordinator/core/step_progress.h"
#include "coordinator/core/work_graph.h"

namespace harmony {

class StepBuilder {
 public:
  // All must outlive it. `memory`: one per device.
  StepBuilder(const ModelSpec& model, const Plan& plan, const ArenaLayout& layout,
              const KeptLayout& kept, WorkGraph& graph, std::vector<DeviceMemory>& memory,
              StepProgress& progress);

  void AddInitialize(int64_t step);
  // ResourceExhausted when a group of the plan cannot have its working set: names group, device and
  // bytes missing.
  // `checkpoint_first`: the state before this step is to be saved (the batch is loaded before that,
  // the updates wait for it).
  absl::Status AddStep(const StepWork& work, bool checkpoint_first);
  // Of the state after `step`, one of those added.
  void AddCheckpoint(int64_t step);
  // Of the step added last: by backward group, then share; -1: does not run.
  const std::vector<std::vector<int64_t>>& backward_visits() const { return backward_visits_; }

 private:
  void AddForward(const ShareWork& work, int group, int share);
  void AddBackward(const ShareWork& work, int group, int share);
  int64_t BeginVisit(Visit visit);
  void AddLoads(int64_t visit_id);
  absl::Status AddItems(Visit& visit);
  void AddPosition(int64_t visit_id, int position);
  void AddInputs(int64_t visit_id, int position, absl::InlinedVector<NodeId, 8>& deps);
  void AddOutputs(int64_t visit_id, int position);
  // After the last microbatch of a replica.
  void AddReplicaTail(int64_t visit_id, int position);
  void AddHostTasks(const StepWork& work);
  // Waits for the nodes in `after` and empties it.
  void AddUpdate(int block, std::vector<NodeId>& after);
  void AddBankRelease(int64_t visit_id, NodeId out);
  // What puts a stash in its place in this step; kNoNode when it was committed before.
  NodeId StashMaker(const Visit& reader, int boundary, int microbatch) const;
  // A copy of what the task at the position has made.
  NodeId AddCopy(NodeKind kind, int64_t visit_id, int position, int index);
  bool ReachesEnd(const Visit& forward) const;  // runs all layers of its group
  const LayerGroup* NextGroup(const Visit& visit) const;
  // On the lane of its kind, of the visit's device.
  NodeId Add(NodeKind kind, int64_t visit, int position, int index,
             std::initializer_list<NodeId> deps);
  NodeId AddHost(NodeKind kind, int index, std::initializer_list<NodeId> deps) {
    return Add(kind, -1, 0, index, deps);
  }
  int DeviceOfGroup(const LayerGroup& group, const Visit& visit) const {
    return DeviceOf(plan_, group, visit.share);
  }
  // The first microbatch of a replica, or the last.
  bool Begins(const Visit& visit, int position) const {
    return visit.microbatches[position] * visit.span % plan_.replica_microbatches() == 0;
  }
  bool Ends(const Visit& visit, int position) const {
    return (visit.microbatches[position] + 1) * visit.span % plan_.replica_microbatches() == 0;
  }
  bool ConsumerRuns(const ShareWork& work, const Visit& visit, int microbatch) const;

  const ModelSpec& model_;
  const Plan& plan_;
  const ArenaLayout& layout_;
  const KeptLayout& kept_;
  WorkGraph& graph_;
  std::vector<DeviceMemory>& memory_;
  StepProgress& progress_;
  LaneTable lanes_;
  const bool eager_;

  int64_t step_ = 0;
  const StepWork* work_ = nullptr;
  absl::Status status_;
  // By share: visit before, whose output the next one takes; -1: it does not run.
  std::vector<int64_t> producer_;
  std::vector<std::vector<int64_t>> forward_visits_;   // by share, layer; -1: does not run
  std::vector<std::vector<int64_t>> backward_visits_;  // by backward group, share; -1: does not run
  NodeId batch_ = kNoNode;
  std::vector<NodeId> losses_;
  // In this step, by share, keeper and block.
  std::map<std::tuple<int, int, int>, NodeId> kept_loads_;
  // Across steps.
  std::vector<NodeId> last_update_;  // by block
  NodeId last_checkpoint_ = kNoNode, fused_started_ = kNoNode, initialized_ = kNoNode;
  std::array<std::pair<int64_t, NodeId>, 4> end_of_updates_;  // of the last steps, by step mod 4
};

}  // namespace harmony
