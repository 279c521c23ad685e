#include "coordinator/dispatch/graph/step_progress.h"

#include <algorithm>

namespace harmony::dispatch {

StepProgress::Count* StepProgress::Find(int64_t step) {
  for (Count& count : counts_) {
    if (count.step == step) return &count;
  }
  return nullptr;
}

StepProgress::Count& StepProgress::CountOf(int64_t step) {
  Count* count = Find(step);
  return count != nullptr ? *count : counts_.emplace_back(Count{step});
}

bool StepProgress::RoomForNext() const {
  const auto unissued = std::find_if(counts_.begin(), counts_.end(),
                                     [](const Count& count) { return count.nodes_left > 0; });
  return unissued == counts_.end() || next_ <= unissued->step + 1;
}

void StepProgress::CancelFrom(int64_t end) {
  while (!counts_.empty() && counts_.back().step >= end) counts_.pop_back();
  next_ = std::max(next_, end);
}

// A checkpoint may belong to a step before the first one of the generation: that is not counted.
void StepProgress::Added(const Node& node) {
  Count* count = Find(node.step);
  if (count == nullptr) return;
  ++count->nodes_left;
  if (node.kind == NodeKind::kUpdate) ++count->updates_left;
}

void StepProgress::Resolved(const Node& node) {
  if (Count* count = Find(node.step)) --count->nodes_left;
}

void StepProgress::AfterUpdate(const Node& node) {
  Count* count = Find(node.step);
  if (count != nullptr && --count->updates_left == 0)
    finishing_.emplace_back(node.step, node.value);
}

void StepProgress::OnUpdatesCompleted(uint64_t value) {
  while (!finishing_.empty() && finishing_.front().second <= value) {
    completed_ = finishing_.front().first + 1;
    finishing_.pop_front();
    while (!counts_.empty() && counts_.front().step < completed_) counts_.pop_front();
  }
}

}  // namespace harmony::dispatch
