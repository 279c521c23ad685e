#pragma once

// What a step of a plan will take, nearly: a model of the dispatcher that goes from visit to visit
// rather than from command to command, much quicker than a simulation (evaluation.h). It has the
// dispatcher's lanes, shared links, memory, slots and ways of an output; it begins with empty
// lanes, and where copies of neighbouring visits meet on a lane their order may differ. For
// choosing what to simulate; a simulation has the last word. PURE.

#include <cstdint>
#include <vector>

#include "coordinator/planner/bounds.h"
#include "coordinator/planner/region_estimate.h"
#include "coordinator/planner/task_costs.h"

namespace harmony {

class StepEstimator {
 public:
  // Both must outlive it.
  StepEstimator(const ModelSpec& model, TaskCosts& costs) : model_(model), costs_(costs) {}

  // Of the first `microbatches` of the plan's. REQUIRES: the plan fits, is a
  // pipeline without replicas; forward_span divides them.
  Nanos Estimate(const Plan& plan, const StepVisits& step, int microbatches);

 private:
  static constexpr int kNotStashed = -2, kOnHost = -1;  // else the device that keeps it

  // A group's piece of the gradient ring.
  struct RingPiece {
    int64_t begin, end;
    Nanos finish;
  };
  struct Load {
    int visit;
    Nanos ready, duration;
  };
  struct Device {
    Nanos compute, bulk, stream, d2h, p2p, link;  // free from then on
    Nanos compute_busy, link_busy, d2h_busy, p2p_busy;
    int64_t resident = 0;
    RegionEstimate region;
    std::vector<int> visits;  // in their order
    size_t finished = 0;      // of them: all they make is on its way
    size_t next = 0;          // of them, some item has no memory
    size_t item = 0;          // of that visit
    Nanos admitted;           // when the last item got its memory
    std::vector<Load> loads;  // to come, from `first_load` on
    size_t first_load = 0;
  };
  struct State {  // of a visit
    int tasks = 0;
    size_t at = 0;      // of its tasks, in start_ and so on
    int next = 0;       // task to run
    size_t number = 0;  // among its device's
    bool admitted = false;
    Nanos admitted_at, in_free, out_free, gradients_free, loaded;
    int consumer_next = 0;  // its inputs up to here have found their way
    bool direct = false;    // outputs may go to the next visit directly
    bool optional = false;  // ... and only else to the arena
    bool certain = false;   // chained output goes to the arena anyway
    Nanos compute_first, compute, compute_last, hidden_to, hidden_in, out, stash_in, tokens_in;
    size_t first_item = 0;  // in offsets_
    bool from_top = false;  // of the region it stacks its items
    Nanos gradients;        // all are in the arena
  };

  void Prepare(const Plan& plan, const StepVisits& step, int microbatches);
  void PrepareVisit(size_t v);
  void Admit(int device);
  bool AdmitItem(Device& device, size_t v);
  void ReleaseItem(Device& device, size_t v, size_t item, Nanos issued, Nanos finish);
  void PlaceOf(size_t v, size_t item, int64_t* begin, int64_t* end) const;
  void AddLoads(Device& device, size_t v, size_t item, Nanos ready);
  void TakeLoad(Device& device);
  Nanos Stream(Device& device, Nanos ready, Nanos duration);
  void FinishLoads(Device& device, size_t v);
  bool CanRun(size_t v) const;
  void Advance(size_t v, int task);
  void RunTask(size_t v, int task);
  Nanos InputsOf(size_t v, int task);
  void FindWay(size_t v, int task);
  void PassOn(size_t v, int task);
  void WriteOutputs(size_t v, int task);
  void FinishVisit(size_t v);
  Nanos StashMade(int boundary, int microbatch) const;
  Nanos RingFree(size_t v);
  void RunUpdates(size_t v);
  Nanos EndOfUpdates();
  Nanos HostRun(Nanos from, Nanos duration);

  const ModelSpec& model_;
  TaskCosts& costs_;
  // Of the plan at hand.
  const Plan* plan_ = nullptr;
  const StepVisits* step_ = nullptr;
  int microbatches_ = 0;
  bool eager_ = true;
  std::vector<int> links_;  // by lane
  std::vector<Device> devices_;
  std::vector<State> states_;
  std::vector<int64_t> offsets_;  // by visit, item: where it begins in what the visit stacks
  std::vector<Nanos> start_, finish_, out_done_, in_arena_, arrival_;  // by visit, task
  std::vector<int> stash_;                                             // by boundary: where
  std::vector<size_t> stash_at_;   // by boundary: in stash_made_
  std::vector<Nanos> stash_made_;  // by boundary, forward task
  std::vector<Nanos> available_;   // by block
  std::vector<bool> kept_loaded_;  // by block
  std::vector<RingPiece> ring_;    // of the gradient ring, given out
  int64_t ring_at_ = 0;
  Nanos host_free_, host_busy_, loss_;
};

}  // namespace harmony
