#pragma once

// The durations of a dry run. Nodes of one kind on one lane mostly are like the one before: of the
// same execution and with the same index, their commands differ in nothing that a duration depends
// on (Dispatcher::DryRun says what that is). So only the first of such a row is written down and
// asked for.
//
// Owner: Generation. PURE, single-threaded.

#include <array>
#include <cstdint>
#include <vector>

#include "common/plan/plan.h"
#include "coordinator/dispatch/graph/work_graph.h"

namespace harmony::dispatch {

// What a task does with gradients besides adding to them: bits for setting them (the first of its
// replica), adding up sums (the last one), storing them (the last of its part,
// on the device that sends the part to the host).
enum class SumEdge : uint8_t { kNone = 0, kFirst = 1, kLast = 2, kStored = 4 };
SumEdge EdgeOf(const plan::Plan& plan, const GroupExecution& execution, int position);

class DurationMemo {
 public:
  explicit DurationMemo(int num_lanes) : last_(static_cast<size_t>(num_lanes)) {}

  // Null when the node is not like the last one; then Remember says what it takes. `peer`: of a
  // copy to another device, that device.
  const Nanos* Find(const Node& node, SumEdge edge, int peer) const {
    const Entry& last = EntryOf(node);
    const bool same = node.execution >= 0 && last.execution == node.execution &&
                      last.index == IndexOf(node) && last.edge == edge && last.peer == peer;
    return same ? &last.duration : nullptr;
  }
  void Remember(const Node& node, SumEdge edge, int peer, Nanos duration) {
    last_[static_cast<size_t>(node.lane)][static_cast<size_t>(node.kind)] = {
        node.execution, IndexOf(node), edge, peer, duration};
  }

 private:
  struct Entry {
    int64_t execution = -1;
    int index = -1;
    SumEdge edge = SumEdge::kNone;
    int peer = -1;
    Nanos duration;
  };
  // A send's index is where its tensor goes, no part of its size.
  static int IndexOf(const Node& node) { return node.kind == NodeKind::kSend ? 0 : node.index; }
  const Entry& EntryOf(const Node& node) const {
    return last_[static_cast<size_t>(node.lane)][static_cast<size_t>(node.kind)];
  }

  std::vector<std::array<Entry, kNodeKinds>> last_;  // by lane, kind
};

}  // namespace harmony::dispatch
