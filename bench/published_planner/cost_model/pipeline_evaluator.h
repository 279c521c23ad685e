#pragma once

// The pipeline's iteration time under the published cost model without prefetch, fast: what the
// search calls a million times. PURE. Equals the event simulator up to rounding.
//
// A task needs only the row of the task before (when each microbatch's output was ready) and the
// end of the task before on its GPU: within a task everything but the sends runs one after the
// other, and a send never waits for another one.

#include <vector>

#include "bench/published_planner/cost_model/pack_costs.h"

namespace harmony::published {

// Where packs begin. backward[0] == 0; forward[0] == 0 unless forward is empty, which it is when
// and only when there is one backward pack. Forward packs end at backward.back().
struct Cuts {
  std::vector<int> forward, backward;
  bool operator==(const Cuts&) const = default;
};
Schedule ToSchedule(const Cuts& cuts, const PackCosts& costs);
// Whether every pack fits.
bool Fits(const Cuts& cuts, const PackCosts& costs);

class PipelineEvaluator {
 public:
  // REQUIRES: gpus >= 2; `costs` outlives this.
  PipelineEvaluator(const PackCosts& costs, int gpus);

  // Seconds of one iteration; some value >= `cutoff` as soon as it is clear that they reach it.
  double Evaluate(const Cuts& cuts, double cutoff);

  // Work done so far, in row steps (one microbatch in one task).
  int64_t steps() const { return steps_; }

 private:
  struct Task {
    int gpu;
    int first, end;                      // layers
    int stash_begin = 0, stash_end = 0;  // forward: the stashes made in it; backward: its own
    double weights;                      // seconds to load them
    double service;                      // of a microbatch, from the start of its input to its end
    double turnaround;  // of a microbatch, from what the task before gives to its end
    double rest;        // at least this long from its last end to the iteration's end
    double tail;        // `rest`, or what else its GPU has to do after that
  };

  void Prepare(const Cuts& cuts);
  void PrepareForward(const Cuts& cuts);
  void PrepareBackward(const Cuts& cuts);
  void PrepareBounds();
  double EarliestEnd(int task) const;
  double RunForward(int task);
  double RunLastForwardByHost(int task);
  void SendStashes(int task);
  double RunFirstBackward(int task);
  double RunBackward(int task);
  void FinishTask(int task, double last_end);
  bool IsForward(int task) const { return task < forward_tasks_; }
  int64_t Microbatches(int task) const {
    return IsForward(task) ? costs_.fwd_microbatches : costs_.bwd_microbatches;
  }
  double* StashOf(int k) { return stash_.data() + k * costs_.bwd_microbatches; }

  const PackCosts& costs_;
  const int gpus_;
  const bool by_host_;  // boundary tensors of the last forward task go through the host
  int forward_tasks_ = 0, tasks_ = 0, busy_ = 0;
  double share_ = 1;  // how many times longer a swap takes than alone
  std::vector<Task> task_;
  std::vector<double> row_;  // [microbatch]: when the last task's output was ready
  // Per stash: seconds to its reader's process, and from its end to its microbatch's end.
  std::vector<double> message_, until_end_;
  std::vector<double> stash_;                // [stash][backward microbatch]: when it can be read
  std::vector<double> crossed_;              // [backward microbatch], with by_host_
  std::vector<double> delay_end_, cpu_end_;  // [gpu]
  // [i]: how many backward microbatches are complete with i forward microbatches.
  std::vector<int64_t> completed_ = {0};
  double latest_ = 0;
  int64_t steps_ = 0;
};

}  // namespace harmony::published
