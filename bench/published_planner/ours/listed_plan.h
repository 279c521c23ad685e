#pragma once

// Schedules of the published planner judged by our dispatcher. PURE.

#include "bench/published_planner/ours/imported_model.h"
#include "coordinator/planner/timing/evaluation.h"

namespace harmony::published {

// A schedule as a plan, and what our dispatcher makes of it.
struct JudgedSchedule {
  plan::Plan plan;
  harmony::planner::Estimate estimate;
  // By our count of memory it fits the capacity. Where it does not, its devices were given what it
  // lacks, so that it is judged by its time alone.
  bool fits = true;
};

// Numbers of a step's microbatches of u_bwd that a forward task of u_fwd may stand for: u_fwd /
// u_bwd, or where that is none that divides them, the next one below and the next one above.
std::vector<int> ForwardTaskSizesOf(int64_t u_fwd, int64_t u_bwd, int microbatches);

// The groups of a pipeline schedule, wrapped around the devices; nothing else of the plan.
void SetGroups(const Schedule& schedule, int devices, plan::Plan* plan);

// Pipeline schedules (vPP): forward packs and backward packs become groups, task j of forward,
// then backward from the last, runs on GPU j mod N; stashes go to the host and no weights are kept.
// Forward tasks run u_fwd / u_bwd microbatches at once; where that is no whole number that divides
// a step's microbatches, the next one below and the next one above are both tried. What a schedule
// leaves open (eager or deferred updates, slots of the streaming buffers) is taken as is best for
// it.
//
// Data-parallel schedules (vDP): one GPU's tasks, over its share of the samples, on its share of
// the host link. The reduction of the gradients is left out and takes no time, so the schedule is
// not slower than this says; there is no plan of ours in that mode.
//
// REQUIRES: CheckSchedule was OK.
absl::StatusOr<JudgedSchedule> JudgeSchedule(const LayerProfile& profile, const Machine& machine,
                                             Mode mode, int64_t minibatch,
                                             const Schedule& schedule);

}  // namespace harmony::published
