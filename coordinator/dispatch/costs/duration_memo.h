#pragma once

// The durations of a dry run. Of nodes of one kind, with the same index, of the same shard of a
// group, commands differ in nothing that a duration depends on (Dispatcher::DryRun says what that
// is), whatever their step. So only the first of them is written down and asked for.
//
// Owner: Generation. PURE, single-threaded.

#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
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

  // Null when no node like it was seen; then Remember says what it takes. `execution`: the node's.
  // `peer`: of a copy to another device, that device.
  const Nanos* Find(const Node& node, const GroupExecution& execution, SumEdge edge, int peer) {
    Last& last = LastOf(node);
    const int index = IndexOf(node);
    if (last.execution == node.execution && last.index == index && last.edge == edge &&
        last.peer == peer) {
      return &last.duration;
    }
    const auto found = all_.find(KeyOf(node, execution, edge, peer));
    if (found == all_.end()) return nullptr;
    last = {node.execution, index, edge, peer, found->second};
    return &last.duration;
  }
  void Remember(const Node& node, const GroupExecution& execution, SumEdge edge, int peer,
                Nanos duration) {
    LastOf(node) = {node.execution, IndexOf(node), edge, peer, duration};
    all_.emplace(KeyOf(node, execution, edge, peer), duration);
  }

 private:
  // Of the node before, which is of the same execution mostly.
  struct Last {
    int64_t execution = -1;
    int index = -1;
    SumEdge edge = SumEdge::kNone;
    int peer = -1;
    Nanos duration;
  };
  // Lane, kind; phase, group, shard and last layer of the execution; index, edge, peer.
  using Key = std::tuple<int, NodeKind, ExecutionKind, int, int, int, int, SumEdge, int>;

  // A send's index is where its tensor goes, no part of its size.
  static int IndexOf(const Node& node) { return node.kind == NodeKind::kSend ? 0 : node.index; }
  static Key KeyOf(const Node& node, const GroupExecution& execution, SumEdge edge, int peer) {
    return {node.lane,
            node.kind,
            execution.kind,
            execution.group,
            execution.shard,
            execution.layers.last,
            IndexOf(node),
            edge,
            peer};
  }
  Last& LastOf(const Node& node) {
    return last_[static_cast<size_t>(node.lane)][static_cast<size_t>(node.kind)];
  }

  std::vector<std::array<Last, kNodeKinds>> last_;  // by lane, kind
  absl::flat_hash_map<Key, Nanos> all_;
};

}  // namespace harmony::dispatch
