#include "coordinator/dispatch/graph/work_graph.h"

#include <algorithm>
#include <utility>

namespace harmony::dispatch {

const GroupExecution& WorkGraph::ConsumerOf(const Node& send) const {
  return execution(
      execution(send.execution).positions[static_cast<size_t>(send.position)].consumer);
}

NodeId WorkGraph::Add(Node&& node) {
  const NodeId id = first_node_ + static_cast<NodeId>(nodes_.size());
  queues_[node.queue].push_back(id);
  nodes_.push_back(std::move(node));
  finish_.push_back(kUnresolved);
  return id;
}

void WorkGraph::SetIssued(NodeId id, Nanos finish) {
  Node& issued = node(id);
  issued.state = NodeState::kIssued;
  issued.finish = finish_[static_cast<size_t>(id - first_node_)] = finish;
}

void WorkGraph::SetDropped(NodeId id) {
  node(id).state = NodeState::kDropped;
  finish_[static_cast<size_t>(id - first_node_)] = Nanos();
}

int64_t WorkGraph::AddExecution(GroupExecution execution) {
  executions_.push_back(std::move(execution));
  return first_execution_ + static_cast<int64_t>(executions_.size()) - 1;
}

void WorkGraph::ForgetBefore(int64_t step) {
  const size_t before = nodes_.size();
  while (!nodes_.empty() && nodes_.front().step < step) nodes_.pop_front();
  const auto forgotten = static_cast<int64_t>(before - nodes_.size());
  finish_.erase(finish_.begin(), finish_.begin() + forgotten);
  first_node_ += forgotten;
  while (!executions_.empty() && executions_.front().step < step) {
    executions_.pop_front();
    ++first_execution_;
  }
}

void WorkGraph::CancelFrom(int64_t step) {
  for (std::deque<NodeId>& queue : queues_) {
    queue.erase(std::remove_if(queue.begin(), queue.end(),
                               [&](NodeId id) { return node(id).step >= step; }),
                queue.end());
  }
}

bool WorkGraph::empty() const {
  return std::all_of(queues_.begin(), queues_.end(),
                     [](const auto& queue) { return queue.empty(); });
}

}  // namespace harmony::dispatch
