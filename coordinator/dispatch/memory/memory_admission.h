#pragma once

// Whether a node has the memory that it is the first to write, who used that memory before, and
// what is given back once a node has been issued. By the table of node kinds (node_kinds.h):
// FirstWrite says what must have been given, LastRead what is given back.
//
// Owner: Generation. Single-threaded. Invariant: memory is given in the order of the executions,
// and given back when every command that touches it has been issued. PURE.

#include <vector>

#include "coordinator/dispatch/graph/work_graph.h"
#include "coordinator/dispatch/memory/device_memory.h"
#include "coordinator/dispatch/memory/gradient_slots.h"

namespace harmony::dispatch {

class MemoryAdmission {
 public:
  // All must outlive it. `memory`: by device.
  MemoryAdmission(WorkGraph& graph, std::vector<DeviceMemory>& memory, const GradientSlots& slots)
      : graph_(graph), memory_(memory), slots_(slots) {}

  // The memory that the node writes first has been given. (True of a send whose way is open: the
  // choice of the way asks whether the consumer has its memory.)
  bool IsGiven(const Node& node) const;
  // When those who used that memory before will have finished, as modelled. REQUIRES: IsGiven.
  Nanos FreeAt(const Node& node) const;
  // And who they are: added to `users`. REQUIRES: IsGiven.
  void CollectUsers(const Node& node, Users& users) const;
  // The execution has its streaming slots.
  bool HasSlots(const GroupExecution& execution) const {
    return MemoryOf(execution).admitted(execution.out);
  }
  // When those who used its streaming slots before will have finished. REQUIRES: HasSlots.
  Nanos InputSlotsFreeAt(const GroupExecution& execution) const {
    return MemoryOf(execution).waits(execution.in).finish;
  }

  // Gives waiting executions what memory is free. True when it gave any.
  bool Admit();
  // The node has been issued: gives back what no other node needs. The device whose memory was
  // given to others thereby; -1: none.
  int AfterIssue(const Node& node);
  // The node has been dropped.
  bool AfterDrop(const Node& node);

 private:
  // Calls `use` with each item of a device's memory that the node writes first.
  template <typename Use>
  void ForEachFirstWrite(const Node& node, Use&& use) const;
  // Calls `use` with the users of each piece of memory that the node writes first.
  template <typename Use>
  void ForEachUsers(const Node& node, Use&& use) const;
  bool AfterRead(const Node& node, LastRead reads, GroupExecution& execution);
  bool AfterCompute(const Node& node, GroupExecution& execution);
  bool ReleaseWeights(const GroupExecution& execution);
  bool ReleaseOutputs(GroupExecution& execution);
  bool Release(const GroupExecution& execution, int64_t item, const Users& users);
  const DeviceMemory& MemoryOf(const GroupExecution& execution) const {
    return memory_[static_cast<size_t>(execution.device)];
  }

  WorkGraph& graph_;
  std::vector<DeviceMemory>& memory_;
  const GradientSlots& slots_;
};

}  // namespace harmony::dispatch
