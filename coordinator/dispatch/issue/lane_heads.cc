#include "coordinator/dispatch/issue/lane_heads.h"

#include <algorithm>
#include <utility>

namespace harmony::dispatch {
namespace {

// The heap's order: the last one first.
bool Later(const HeadStart& a, const HeadStart& b) { return b.ComesBefore(a); }

}  // namespace

LaneHeads::LaneHeads(const plan::Plan& plan, const command::LaneTable& lanes, WorkGraph& graph,
                     const MemoryAdmission& memory, const ModelledClock& clock)
    : graph_(graph),
      memory_(memory),
      clock_(clock),
      lanes_of_(static_cast<size_t>(lanes.num_devices())),
      heads_(static_cast<size_t>(graph.num_lanes())) {
  for (int lane = 0; lane < graph.num_lanes(); ++lane) {
    const command::Lane of = lanes.LaneAt(lane);
    if (!command::IsHostLane(of)) lanes_of_[static_cast<size_t>(of.device)].push_back(lane);
  }
  const auto add = [&](NodeKind kind, const plan::LayerGroup& group, int from, int to) {
    if (from < 0 || to < 0) return;
    const int lane = lanes.IndexOf({TraitsOf(kind).lane, plan::ShardOf(plan, group, from).device});
    std::vector<int>& known = lanes_of_[static_cast<size_t>(plan::ShardOf(plan, group, to).device)];
    if (std::find(known.begin(), known.end(), lane) == known.end()) known.push_back(lane);
  };
  const auto add_weights = [&](const plan::LayerGroup& group, int shard) {
    add(NodeKind::kPassWeights, group, plan::WeightPeer(plan, group, shard), shard);
  };
  for (const plan::LayerGroup& group : plan.forward_groups) {
    for (int shard = 0; shard < group.devices.num_shards(); ++shard) add_weights(group, shard);
  }
  for (const plan::LayerGroup& group : plan.backward_groups) {
    for (int shard = 0; shard < group.devices.num_shards(); ++shard) {
      add_weights(group, shard);
      const plan::Shard own = plan::ShardOf(plan, group, shard);
      add(NodeKind::kPassSum, group, shard, plan::SumOf(plan, group, own).given_to);
    }
  }
  Restart();
}

int LaneHeads::Pick() {
  while (!unchecked_.empty()) {
    const int lane = unchecked_.back();
    unchecked_.pop_back();
    Check(lane);
  }
  return ready_.empty() ? -1 : ready_.front().lane;
}

void LaneHeads::Check(int lane) {
  std::deque<NodeId>& queue = graph_.lane(lane);
  while (!queue.empty() && graph_.node(queue.front()).state == NodeState::kDropped) {
    queue.pop_front();
  }
  Head& head = heads_[static_cast<size_t>(lane)];
  head.stalled = true;
  if (queue.empty()) return;
  const Node& node = graph_.node(queue.front());
  if (node.state == NodeState::kWayOpen && node.kind != NodeKind::kSend) return;
  const auto waits_for = [&](NodeId before) {
    if (graph_.Resolved(before)) return false;
    head.stalled = false;
    head.waits_for = before;
    head.next_waiting = std::exchange(graph_.node(before).waiting_lane, lane);
    return true;
  };
  Nanos ready_at;
  for (NodeId dep : node.deps) {
    if (graph_.Forgotten(dep)) continue;
    if (waits_for(dep)) return;
    ready_at = std::max(ready_at, graph_.node(dep).finish);
  }
  if (node.gradient_copies != kNoNode && waits_for(node.gradient_copies)) return;
  if (!memory_.IsGiven(node)) return;
  head.stalled = false;
  head.ready_at = std::max(ready_at, memory_.FreeAt(node));
  ready_.push_back({std::max(head.ready_at, clock_.free_at(lane)), queue.front(), lane});
  std::push_heap(ready_.begin(), ready_.end(), Later);
}

void LaneHeads::Taken(int lane) {
  std::pop_heap(ready_.begin(), ready_.end(), Later);
  ready_.pop_back();
  unchecked_.push_back(lane);
}

void LaneHeads::Resolved(Node& node) {
  for (int lane = node.waiting_lane; lane >= 0;) {
    unchecked_.push_back(lane);
    Head& head = heads_[static_cast<size_t>(lane)];
    head.waits_for = kNoNode;
    lane = head.next_waiting;
  }
  node.waiting_lane = -1;
}

void LaneHeads::ChangedAt(int lane) {
  Head& head = heads_[static_cast<size_t>(lane)];
  if (!head.stalled) return;
  head.stalled = false;
  unchecked_.push_back(lane);
}

void LaneHeads::ChangedOn(int device) {
  for (int lane : lanes_of_[static_cast<size_t>(device)]) ChangedAt(lane);
}

void LaneHeads::Changed() {
  for (int lane = 0; lane < graph_.num_lanes(); ++lane) ChangedAt(lane);
}

void LaneHeads::Restart() {
  ready_.clear();
  unchecked_.clear();
  for (int lane = 0; lane < graph_.num_lanes(); ++lane) {
    Head& head = heads_[static_cast<size_t>(lane)];
    if (!graph_.Forgotten(head.waits_for)) graph_.node(head.waits_for).waiting_lane = -1;
    head.waits_for = kNoNode;
    head.stalled = false;
    unchecked_.push_back(lane);
  }
}

}  // namespace harmony::dispatch
