#pragma once

// Turns a node of the work graph, once it has its memory, into the body of a command: one function
// for each kind of node. Owner: Generation. PURE.

#include <optional>
#include <vector>

#include "common/command/command.h"
#include "common/plan/arena_layout.h"
#include "coordinator/dispatch/graph/work_graph.h"
#include "coordinator/dispatch/memory/arena_records.h"
#include "coordinator/dispatch/memory/binding_places.h"
#include "coordinator/dispatch/memory/device_memory.h"
#include "coordinator/dispatch/memory/kept_layout.h"

namespace harmony::dispatch {

class CommandWriter {
 public:
  CommandWriter(const model::ModelSpec& model, const plan::Plan& plan,
                const plan::ArenaLayout& layout, const KeptLayout& kept,
                const command::ObjectTableLayout& table, const WorkGraph& graph,
                const std::vector<DeviceMemory>& memory, ArenaRecords& records);

  // Fills in the body; lane and value are set. `gradient_slot`: where a gradient without a slot of
  // its own goes. `recovery`: the traffic counts as moved again after a fault. Commands to wait for
  // in addition are added to `after`.
  void WriteBody(const Node& node, Bytes gradient_slot, bool recovery, command::Command& command,
                 Users& after);

 private:
  struct Placing {  // of a copy into the arena: what signals it, what it has to wait for
    uint32_t lane;
    uint64_t value;
    Bytes gradient_slot;
    Users& after;
  };
  using Body = decltype(command::Command::body);
  struct Writer {
    NodeKind kind;
    Body (CommandWriter::*write)(const Node& node, Placing& placing);
  };
  static const Writer kWriters[];
  // By kind of node.
  Body Initialize(const Node& node, Placing& placing);
  Body LoadBatch(const Node& node, Placing& placing);
  Body LoadWeights(const Node& node, Placing& placing);
  Body PassWeights(const Node& node, Placing& placing);
  Body BatchIn(const Node& node, Placing& placing);
  Body InputIn(const Node& node, Placing& placing);
  Body GradientIn(const Node& node, Placing& placing);
  Body Compute(const Node& node, Placing& placing);
  Body Send(const Node& node, Placing& placing);
  Body StashOut(const Node& node, Placing& placing);
  Body Keep(const Node& node, Placing& placing);
  Body BoundaryOut(const Node& node, Placing& placing);
  Body LossOut(const Node& node, Placing& placing);
  Body GradientOut(const Node& node, Placing& placing);
  Body PassSum(const Node& node, Placing& placing);
  Body StepScalars(const Node& node, Placing& placing);
  Body Norm(const Node& node, Placing& placing);
  Body Clip(const Node& node, Placing& placing);
  Body Update(const Node& node, Placing& placing);
  Body Checkpoint(const Node& node, Placing& placing);

  // From the arena into a streaming slot; from the arena's object `from`.
  command::Transfer In(const Node& node, Bytes within_slot, Bytes arena, Bytes size,
                       command::TrafficClass traffic, const command::ObjectKey& from) const;
  // From the device into the arena's object `key`.
  command::Transfer Out(const GroupExecution& execution, Bytes device_offset, Bytes arena,
                        Bytes size, command::TrafficClass traffic, const command::ObjectKey& key,
                        Placing& placing);
  std::vector<int> GradientRecords(int block) const;
  std::vector<command::SemaphoreWait> GradientWaits(const Node& node) const;

  BindingPlaces PlacesOf(const GroupExecution& execution) const;
  Bytes Hidden(int boundary) const;  // of one microbatch
  Bytes HiddenGradient(int boundary) const;
  static int ParityOf(const Node& node) { return static_cast<int>(node.step & 1); }
  int Record(const command::ObjectKey& key) const { return table_.IndexOf(key); }

  const model::ModelSpec& model_;
  const plan::Plan& plan_;
  const plan::ArenaLayout& layout_;
  const KeptLayout& kept_;
  const command::ObjectTableLayout& table_;
  const WorkGraph& graph_;
  const std::vector<DeviceMemory>& memory_;
  ArenaRecords& records_;
  const std::vector<Bytes> parameters_;  // where they lie in the arena, by block
};

}  // namespace harmony::dispatch
