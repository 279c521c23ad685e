#pragma once

// Whether a node has the memory that it is the first to write, who used that memory before, and
// what is given back once a node has been issued. By the table of node kinds (node_kinds.h):
// FirstWrite says what must have been given, LastRead what is given back.
//
// Owner: Generation. Single-threaded. Invariant: memory is given in the order of the visits, and
// given back when every command that touches it has been issued. PURE.

#include <vector>

#include "coordinator/core/device_memory.h"
#include "coordinator/core/gradient_slots.h"
#include "coordinator/core/work_graph.h"

namespace harmony {

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
  // The visit has all of its memory.
  bool HasAll(const Visit& visit) const { return MemoryOf(visit).admitted(visit.end_item - 1); }
  // When those who used its streaming slots before will have finished. REQUIRES: HasAll.
  Nanos InputSlotsFreeAt(const Visit& visit) const {
    return MemoryOf(visit).waits(visit.in).finish;
  }

  // Gives waiting visits what memory is free. True when it gave any.
  bool Admit();
  // The node has been issued: gives back what no other node needs. True when memory was given to
  // others thereby.
  bool AfterIssue(const Node& node);
  // The node has been dropped.
  bool AfterDrop(const Node& node);

 private:
  // Calls `use` with the users of each piece of memory that the node writes first.
  template <typename Use>
  void ForEachFirstWrite(const Node& node, Use&& use) const;
  bool AfterCompute(const Node& node, Visit& visit);
  bool ReleaseOutputs(Visit& visit);
  bool Release(const Visit& visit, int64_t item, const Users& users);
  const DeviceMemory& MemoryOf(const Visit& visit) const {
    return memory_[static_cast<size_t>(visit.device)];
  }

  WorkGraph& graph_;
  std::vector<DeviceMemory>& memory_;
  const GradientSlots& slots_;
};

}  // namespace harmony
