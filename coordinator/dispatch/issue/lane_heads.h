#pragma once

// Which lane's head is issued next: of all heads that can be issued, the one with the earliest
// modelled start; of those with the same, the one that was added to the graph first. A head can be
// issued when all it depends on has been issued or dropped and it has its memory.
//
// Owner: Generation, which tells it what changes: a node that is resolved (issued or dropped) makes
// the heads that wait for it be looked at again, and so do memory that was given and ways that were
// chosen. What was found ready stays ready, at the same time. PURE,
// single-threaded.

#include <vector>

#include "coordinator/dispatch/graph/work_graph.h"
#include "coordinator/dispatch/issue/modelled_clock.h"
#include "coordinator/dispatch/memory/memory_admission.h"

namespace harmony::dispatch {

// When a lane's head starts, as modelled, and what decides between two at the same time.
struct HeadStart {
  Nanos start;
  NodeId id = kNoNode;
  int lane = -1;
  // The order in which heads are issued.
  bool ComesBefore(const HeadStart& other) const {
    return start != other.start ? start < other.start : id < other.id;
  }
};

class LaneHeads {
 public:
  // All must outlive it.
  LaneHeads(const plan::Plan& plan, const command::LaneTable& lanes, WorkGraph& graph,
            const MemoryAdmission& memory, const ModelledClock& clock);

  // The lane whose head comes next; -1 when no head can be issued.
  int Pick();
  // When the waits of a picked lane's head are over.
  Nanos ReadyAt(int lane) const { return heads_[static_cast<size_t>(lane)].ready_at; }

  // The head of the lane that was picked has been issued, or its way chosen.
  void Taken(int lane);
  void Resolved(Node& node);
  // Nodes were added, or gradients got slots: looks at all heads again that are not ready and wait
  // for no node.
  void Changed();
  // Memory of a device was given: at those of its lanes, and of lanes that pass weights on to it.
  void ChangedOn(int device);
  // A node's way was chosen: at that of its lane.
  void ChangedAt(int lane);
  // Heads may be others now: looks at all of them again.
  void Restart();

 private:
  struct Head {
    Nanos ready_at;
    bool stalled = false;  // looked at in vain, and waits for no node
    NodeId waits_for = kNoNode;
    int next_waiting = -1;  // the next of the lanes that wait for the same node
  };
  void Check(int lane);

  WorkGraph& graph_;
  const MemoryAdmission& memory_;
  const ModelledClock& clock_;
  std::vector<std::vector<int>> lanes_of_;  // by device
  std::vector<Head> heads_;                 // by lane
  std::vector<HeadStart> ready_;            // a heap, the first to be issued on top
  std::vector<int> unchecked_;              // lanes whose heads are to be looked at
};

}  // namespace harmony::dispatch
