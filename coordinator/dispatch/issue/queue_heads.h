#pragma once

// Which queue's head is issued next: of all heads that can be issued, the one with the earliest
// modelled start; of those with the same, one that does not yield (NodeTraits), and of these the
// one that was added to the graph first. A head can be issued when all it depends on has been
// issued or dropped and it has its memory.
//
// Owner: Generation, which tells it what changes: a node that is resolved (issued or dropped) makes
// the heads that wait for it be looked at again, and so do memory that was given and ways that were
// chosen. What was found ready stays ready. PURE, single-threaded.

#include <tuple>
#include <vector>

#include "coordinator/dispatch/graph/queue_table.h"
#include "coordinator/dispatch/graph/work_graph.h"
#include "coordinator/dispatch/issue/modelled_clock.h"
#include "coordinator/dispatch/memory/memory_admission.h"

namespace harmony::dispatch {

// When a queue's head starts, as modelled, and what decides between two at the same time.
struct HeadStart {
  Nanos start;
  bool yields = false;
  NodeId id = kNoNode;
  int queue = -1;
  // The order in which heads are issued.
  bool ComesBefore(const HeadStart& other) const {
    return std::tie(start, yields, id) < std::tie(other.start, other.yields, other.id);
  }
};

class QueueHeads {
 public:
  // All must outlive it.
  QueueHeads(const plan::Plan& plan, const QueueTable& queues, WorkGraph& graph,
             const MemoryAdmission& memory, const ModelledClock& clock);

  // The queue whose head comes next; -1 when no head can be issued.
  int Pick();
  // When the waits of a picked queue's head are over.
  Nanos ReadyAt(int queue) const { return heads_[static_cast<size_t>(queue)].ready_at; }

  // The head of the queue that was picked has been issued, or its way chosen.
  void Taken(int queue);
  void Resolved(Node& node);
  // Nodes were added, or gradients got slots: looks at all heads again that are not ready and wait
  // for no node.
  void Changed();
  // Memory of a device was given: at those of its queues, and of queues that pass weights or sums
  // on to it.
  void ChangedOn(int device);
  // A node's way was chosen: at that of its queue.
  void ChangedAt(int queue);
  // Heads may be others now: looks at all of them again.
  void Restart();

 private:
  struct Head {
    Nanos ready_at;
    bool stalled = false;  // looked at in vain, and waits for no node
    NodeId waits_for = kNoNode;
    int next_waiting = -1;  // the next of the queues that wait for the same node
  };
  void Check(int queue);
  // When a head that is ready starts. This is later than `ready_` says where another queue has used
  // its lane since: Pick corrects the entry on top, which is enough, for starts only grow.
  Nanos StartOf(int queue) const;

  WorkGraph& graph_;
  const MemoryAdmission& memory_;
  const ModelledClock& clock_;
  std::vector<std::vector<int>> queues_of_;  // by device
  std::vector<Head> heads_;                  // by queue
  std::vector<HeadStart> ready_;             // a heap, the first to be issued on top
  std::vector<int> unchecked_;               // queues whose heads are to be looked at
};

}  // namespace harmony::dispatch
