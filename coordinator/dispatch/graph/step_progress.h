#pragma once

// How far each step is: how many of its nodes are not resolved, how many of its updates are not
// issued, and which steps have completed. Two steps are being issued at a time.
//
// Owner: Generation; StepBuilder tells it what it adds. Single-threaded. Invariant: steps complete
// in order, each with the last of its updates. PURE.

#include <cstdint>
#include <deque>
#include <utility>

#include "coordinator/dispatch/graph/work_graph.h"

namespace harmony::dispatch {

class StepProgress {
 public:
  // Steps below `first` have completed.
  void Begin(int64_t first) { completed_ = next_ = first; }

  // The next step to be added to the graph.
  int64_t next() const { return next_; }
  // No step that is not among the last two has nodes that are to be issued.
  bool RoomForNext() const;
  // Nodes of this step will be added.
  void Track(int64_t step) { CountOf(step); }
  // The next step is being added.
  void BeginNext() { Track(next_++); }
  // Steps from `end` on are not run.
  void CancelFrom(int64_t end);

  void Added(const Node& node);
  void Resolved(const Node& node);
  // An update that was issued.
  void AfterUpdate(const Node& node);
  // Commands up to this value of the lane that updates run on have completed.
  void OnUpdatesCompleted(uint64_t value);

  // Steps below have completed.
  int64_t completed() const { return completed_; }

 private:
  struct Count {
    int64_t step = 0;
    int nodes_left = 0, updates_left = 0;
  };
  Count* Find(int64_t step);
  Count& CountOf(int64_t step);

  std::deque<Count> counts_;                            // of steps added, not completed
  std::deque<std::pair<int64_t, uint64_t>> finishing_;  // step, value of its last update
  int64_t next_ = 0, completed_ = 0;
};

}  // namespace harmony::dispatch
