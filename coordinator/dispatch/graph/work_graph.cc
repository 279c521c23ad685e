#include "coordinator/dispatch/graph/work_graph.h"

#include <algorithm>
#include <utility>

namespace harmony::dispatch {

const GroupExecution& WorkGraph::ConsumerOf(const Node& send) const {
  return execution(
      execution(send.execution).positions[static_cast<size_t>(send.position)].consumer);
}

NodeId WorkGraph::Add(Node node) {
  const NodeId id = first_node_ + static_cast<NodeId>(nodes_.size());
  queues_[node.queue].push_back(id);
  nodes_.push_back(std::move(node));
  return id;
}

int64_t WorkGraph::AddExecution(GroupExecution execution) {
  executions_.push_back(std::move(execution));
  return first_execution_ + static_cast<int64_t>(executions_.size()) - 1;
}

void WorkGraph::ForgetBefore(int64_t step) {
  while (!nodes_.empty() && nodes_.front().step < step) {
    nodes_.pop_front();
    ++first_node_;
  }
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
