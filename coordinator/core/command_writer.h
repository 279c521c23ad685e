#pragma once

// Turns a node of the work graph, once it has its memory, into the body of a command. PURE.

#include <optional>
#include <vector>

#include "common/plan/arena_layout.h"
#include "common/plan/command.h"
#include "coordinator/core/arena_records.h"
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
  ComputeTask Compute(const Node& node) const;
  Transfer Copy(const Node& node, Bytes gradient_slot, Placing& placing);
  Transfer LoadWeights(const Node& node) const;
  Transfer ToConsumer(const Node& node) const;
  Transfer ToKeeper(const Node& node) const;
  Transfer FromArena(const Node& node) const;
  Transfer ToArena(const Node& node, Bytes gradient_slot, Placing& placing);
  HostTask Host(const Node& node) const;
  Transfer In(const Node& node, Bytes within_slot, Bytes arena, Bytes size,
              TrafficClass traffic) const;
  Transfer Out(const Visit& visit, Bytes device_offset, Bytes arena, Bytes size,
               TrafficClass traffic, const ObjectKey& key, Placing& placing);
  // Offset of a part of the slot that a position streams through.
  Bytes InSlot(const Visit& visit, int position, Bytes within) const;
  Bytes OutSlot(const Visit& visit, int position, Bytes within) const;
  // Where a forward's output lies: in its slot, or where it is kept.
  Bytes OutputPlace(const Visit& visit, int position, int output) const;
  Bytes Hidden(int boundary) const;  // of one microbatch
  int InShare(int microbatch) const { return microbatch % plan_.share_microbatches(); }
  static int FirstMicrobatch(const Visit& visit, int position);
  int OutputNumber(const Visit& visit, int boundary) const;
  // Of the visit's block number `i`, in its device's region.
  Bytes WeightPlace(const Visit& visit, int i) const;
  int Bank(int backward_group) const;
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
