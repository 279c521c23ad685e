#pragma once

// The queues in which the nodes of a graph wait to be issued, each in the order in which they were
// added: one for each lane, with the lane's index, and behind these one for each device, for what
// its P2P lane takes aside (NodeTraits::aside). A lane carries out what its queues give it in the
// order in which that was issued. PURE.

#include "common/command/command.h"
#include "coordinator/dispatch/graph/node_kinds.h"

namespace harmony::dispatch {

class QueueTable {
 public:
  explicit QueueTable(const command::LaneTable& lanes) : lanes_(lanes) {}

  int size() const { return lanes_.size() + lanes_.num_devices(); }
  // Of nodes that a lane of `device` carries out (of host tasks: any device).
  int IndexOf(NodeKind kind, int device) const {
    const NodeTraits& traits = TraitsOf(kind);
    return traits.aside ? lanes_.size() + device : lanes_.IndexOf({traits.lane, device});
  }
  // -1: the host's.
  int DeviceOf(int queue) const {
    if (queue >= lanes_.size()) return queue - lanes_.size();
    const command::Lane lane = lanes_.LaneAt(queue);
    return command::IsHostLane(lane) ? -1 : lane.device;
  }

 private:
  command::LaneTable lanes_;
};

}  // namespace harmony::dispatch
