#pragma once

// Turns a node of the work graph, once it has its memory, into the body of a command: one function
// for each kind of node. Owner: Generation. PURE.

#include <optional>
#include <vector>

#include "common/plan/arena_layout.h"
#include "common/plan/command.h"
#include "coordinator/core/arena_records.h"
#include "coordinator/core/binding_places.h"
#include "coordinator/core/device_memory.h"
#include "coordinator/core/kept_layout.h"
#include "coordinator/core/work_graph.h"

namespace harmony {

class CommandWriter {
 public:
  CommandWriter(const ModelSpec& model, const Plan& plan, const ArenaLayout& layout,
                const KeptLayout& kept, const ObjectTableLayout& table, const WorkGraph& graph,
                const std::vector<DeviceMemory>& memory, ArenaRecords& records);

  // Fills in the body; lane and value are set. `gradient_slot`: where a gradient without a slot of
  // its own goes. `recovery`: the traffic counts as moved again after a fault. Commands to wait for
  // in addition are added to `after`.
  void WriteBody(const Node& node, Bytes gradient_slot, bool recovery, Command& command,
                 Users& after);

 private:
  struct Placing {  // of a copy into the arena: what signals it, what it has to wait for
    uint32_t lane;
    uint64_t value;
    Users& after;
  };
  // By kind of node.
  ComputeTask Compute(const Node& node) const;
  Transfer LoadWeights(const Node& node) const;
  Transfer BatchIn(const Node& node) const;
  Transfer InputIn(const Node& node) const;
  Transfer GradientIn(const Node& node) const;
  Transfer Send(const Node& node) const;
  Transfer Keep(const Node& node) const;
  Transfer StashOut(const Node& node, Placing& placing);
  Transfer BoundaryOut(const Node& node, Placing& placing);
  Transfer LossOut(const Node& node, Placing& placing);
  Transfer GradientOut(const Node& node, Bytes slot, Placing& placing);

  // From the arena into a streaming slot; from the arena's object `from`.
  Transfer In(const Node& node, Bytes within_slot, Bytes arena, Bytes size, TrafficClass traffic,
              const ObjectKey& from) const;
  // From the device into the arena's object `key`.
  Transfer Out(const Visit& visit, Bytes device_offset, Bytes arena, Bytes size,
               TrafficClass traffic, const ObjectKey& key, Placing& placing);
  std::vector<int> GradientRecords(int block) const;

  BindingPlaces PlacesOf(const Visit& visit) const;
  Bytes Hidden(int boundary) const;  // of one microbatch
  Bytes HiddenGradient(int boundary) const;
  static int ParityOf(const Node& node) { return static_cast<int>(node.step & 1); }
  int Record(const ObjectKey& key) const { return table_.IndexOf(key); }

  const ModelSpec& model_;
  const Plan& plan_;
  const ArenaLayout& layout_;
  const KeptLayout& kept_;
  const ObjectTableLayout& table_;
  const WorkGraph& graph_;
  const std::vector<DeviceMemory>& memory_;
  ArenaRecords& records_;
  const std::vector<Bytes> parameters_;  // where they lie in the arena, by block
};

}  // namespace harmony
