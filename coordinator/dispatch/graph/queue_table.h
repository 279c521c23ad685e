#pragma once

// The queues in which the nodes of a graph wait to be issued, each in the order in which they were
// added: one for each lane, with the lane's index, and behind these, for each device, one for each
// kind of lane that takes something aside (NodeTraits::aside). A lane carries out what its queues
// give it in the order in which that was issued. PURE.

#include "common/command/command.h"
#include "coordinator/dispatch/graph/node_kinds.h"

namespace harmony::dispatch {

class QueueTable {
 public:
  explicit QueueTable(const command::LaneTable& lanes) : lanes_(lanes) {}

  int size() const { return lanes_.size() + kAsideQueues * lanes_.num_devices(); }
  // Of nodes that a lane of `device` carries out (of host tasks: any device).
  int IndexOf(NodeKind kind, int device) const {
    const NodeTraits& traits = TraitsOf(kind);
    if (!traits.aside) return lanes_.IndexOf({traits.lane, device});
    return lanes_.size() + AsideNumber(traits.lane) * lanes_.num_devices() + device;
  }
  // -1: the host's.
  int DeviceOf(int queue) const {
    if (queue >= lanes_.size()) return (queue - lanes_.size()) % lanes_.num_devices();
    const command::Lane lane = lanes_.LaneAt(queue);
    return command::IsHostLane(lane) ? -1 : lane.device;
  }

 private:
  command::LaneTable lanes_;
};

}  // namespace harmony::dispatch
