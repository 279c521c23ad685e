#include "coordinator/core/work_graph.h"

#include <algorithm>
#include <utility>

namespace harmony {

NodeId WorkGraph::Add(Node node) {
  const NodeId id = first_node_ + static_cast<NodeId>(nodes_.size());
  lanes_[node.lane].push_back(id);
  nodes_.push_back(std::move(node));
  return id;
}

int64_t WorkGraph::AddVisit(Visit visit) {
  visits_.push_back(std::move(visit));
  return first_visit_ + static_cast<int64_t>(visits_.size()) - 1;
}

void WorkGraph::ForgetBefore(int64_t step) {
  while (!nodes_.empty() && nodes_.front().step < step) {
    nodes_.pop_front();
    ++first_node_;
  }
  while (!visits_.empty() && visits_.front().step < step) {
    visits_.pop_front();
    ++first_visit_;
  }
}

void WorkGraph::CancelFrom(int64_t step) {
  for (std::deque<NodeId>& lane : lanes_) {
    lane.erase(
        std::remove_if(lane.begin(), lane.end(), [&](NodeId id) { return node(id).step >= step; }),
        lane.end());
  }
}

bool WorkGraph::empty() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane.empty(); });
}

}  // namespace harmony
