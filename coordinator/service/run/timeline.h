#pragma once

// What ran when, and beside it what the plan says: the answer to GetTimeline.

#include <memory>
#include <string>
#include <vector>

#include "common/plan/machine.h"
#include "common/plan/plan.h"
#include "coordinator/service/run/job_run.h"
#include "coordinator/service/run/lane_monitor.h"

namespace harmony::v1 {
class Timeline;
}  // namespace harmony::v1

namespace harmony::service {

// Copied from a run, so that it outlives it and can be planned off the loop.
struct RecordedTimeline {
  std::string job_id;
  model::ModelSpec model;
  plan::Plan plan;
  std::shared_ptr<const profile::Profile> profile;  // what it was planned by; null: an estimate
  dispatch::CostScales scales;                      // ... and corrected
  std::vector<plan::DeviceSpec> devices;
  int64_t first_step = 0, end_step = 0, save_steps = 0;  // of the run, indices from 0
  int64_t completed_steps = 0;                           // and reported to the last command
  std::vector<std::vector<MeasuredCommand>> lanes;       // by LaneTable's index

  void DropBefore(int64_t step);
};

// The last `last_steps` whole steps (0: all that are kept) and what has run of those under way.
RecordedTimeline RecordTimeline(const JobRun& run, const std::vector<plan::DeviceSpec>& devices,
                                int64_t last_steps);

// Runs the plan through the planner's evaluation over the recorded steps, from two steps before
// them, and aligns the two at the first task of the first step. Slow; any thread.
void FillTimeline(const RecordedTimeline& recorded, v1::Timeline* timeline);

}  // namespace harmony::service
