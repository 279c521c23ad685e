#include "coordinator/dispatch/issue/queue_heads.h"

#include <algorithm>
#include <utility>

namespace harmony::dispatch {
namespace {

// The heap's order: the last one first.
bool Later(const HeadStart& a, const HeadStart& b) { return b.ComesBefore(a); }

}  // namespace

QueueHeads::QueueHeads(const plan::Plan& plan, const QueueTable& queues, WorkGraph& graph,
                       const MemoryAdmission& memory, const ModelledClock& clock)
    : graph_(graph),
      memory_(memory),
      clock_(clock),
      queues_of_(plan.devices.size()),
      heads_(static_cast<size_t>(graph.num_queues())) {
  for (int queue = 0; queue < graph.num_queues(); ++queue) {
    const int device = queues.DeviceOf(queue);
    if (device >= 0) queues_of_[static_cast<size_t>(device)].push_back(queue);
  }
  const auto add = [&](NodeKind kind, const plan::LayerGroup& group, int from, int to) {
    if (from < 0 || to < 0) return;
    const int queue = queues.IndexOf(kind, plan::ShardOf(plan, group, from).device);
    std::vector<int>& known =
        queues_of_[static_cast<size_t>(plan::ShardOf(plan, group, to).device)];
    if (std::find(known.begin(), known.end(), queue) == known.end()) known.push_back(queue);
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

int QueueHeads::Pick() {
  while (!unchecked_.empty()) {
    const int queue = unchecked_.back();
    unchecked_.pop_back();
    Check(queue);
  }
  while (!ready_.empty() && ready_.front().start < StartOf(ready_.front().queue)) {
    std::pop_heap(ready_.begin(), ready_.end(), Later);
    ready_.back().start = StartOf(ready_.back().queue);
    std::push_heap(ready_.begin(), ready_.end(), Later);
  }
  return ready_.empty() ? -1 : ready_.front().queue;
}

Nanos QueueHeads::StartOf(int queue) const {
  const int lane = graph_.node(graph_.queue(queue).front()).lane;
  return std::max(ReadyAt(queue), clock_.free_at(lane));
}

void QueueHeads::Check(int queue) {
  std::deque<NodeId>& nodes = graph_.queue(queue);
  while (!nodes.empty() && graph_.node(nodes.front()).state == NodeState::kDropped) {
    nodes.pop_front();
  }
  Head& head = heads_[static_cast<size_t>(queue)];
  head.stalled = true;
  if (nodes.empty()) return;
  const Node& node = graph_.node(nodes.front());
  if (node.state == NodeState::kWayOpen && node.kind != NodeKind::kSend) return;
  const auto waits_for = [&](NodeId before) {
    if (graph_.Resolved(before)) return false;
    head.stalled = false;
    head.waits_for = before;
    head.next_waiting = std::exchange(graph_.node(before).waiting_queue, queue);
    return true;
  };
  Nanos ready_at;
  for (NodeId dep : node.deps) {
    if (graph_.Forgotten(dep)) continue;
    if (waits_for(dep)) return;
    ready_at = std::max(ready_at, graph_.FinishOf(dep));
  }
  if (node.gradient_copies != kNoNode && waits_for(node.gradient_copies)) return;
  if (!memory_.IsGiven(node)) return;
  head.stalled = false;
  head.ready_at = std::max(ready_at, memory_.FreeAt(node));
  ready_.push_back({StartOf(queue), TraitsOf(node.kind).yields, nodes.front(), queue});
  std::push_heap(ready_.begin(), ready_.end(), Later);
}

void QueueHeads::Taken(int queue) {
  std::pop_heap(ready_.begin(), ready_.end(), Later);
  ready_.pop_back();
  unchecked_.push_back(queue);
}

void QueueHeads::Resolved(Node& node) {
  for (int queue = node.waiting_queue; queue >= 0;) {
    unchecked_.push_back(queue);
    Head& head = heads_[static_cast<size_t>(queue)];
    head.waits_for = kNoNode;
    queue = head.next_waiting;
  }
  node.waiting_queue = -1;
}

void QueueHeads::ChangedAt(int queue) {
  Head& head = heads_[static_cast<size_t>(queue)];
  if (!head.stalled) return;
  head.stalled = false;
  unchecked_.push_back(queue);
}

void QueueHeads::ChangedOn(int device) {
  for (int queue : queues_of_[static_cast<size_t>(device)]) ChangedAt(queue);
}

void QueueHeads::Changed() {
  for (int queue = 0; queue < graph_.num_queues(); ++queue) ChangedAt(queue);
}

void QueueHeads::Restart() {
  ready_.clear();
  unchecked_.clear();
  for (int queue = 0; queue < graph_.num_queues(); ++queue) {
    Head& head = heads_[static_cast<size_t>(queue)];
    if (!graph_.Forgotten(head.waits_for)) graph_.node(head.waits_for).waiting_queue = -1;
    head.waits_for = kNoNode;
    head.stalled = false;
    unchecked_.push_back(queue);
  }
}

}  // namespace harmony::dispatch
