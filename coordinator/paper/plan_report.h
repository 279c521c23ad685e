#pragma once

// What `harmony plan --cost-model paper` prints.

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/planner/paper/event_simulator.h"
#include "coordinator/planner/paper/layer_profile.h"
#include "coordinator/planner/paper/schedule.h"

namespace harmony::paper {

// A schedule, found or given, and its figures.
struct PlanReport {
  Machine machine;
  Mode mode = Mode::kPipeline;
  int64_t minibatch = 0;
  Schedule schedule;
  Estimate estimate;           // as the published planner ranks
  double prefetch_time_s = 0;  // with prefetch and offload overlapping compute
  PackMemory memory;
  bool searched = false;  // the rest only then
  double lower_bound_s = 0, search_s = 0;
  int64_t evaluations = 0;
  int size_pairs = 0;

  bool fits() const {
    return memory.forward_bytes <= machine.memory_bytes &&
           memory.backward_bytes <= machine.memory_bytes;
  }
};

// Fills in what follows from machine, mode, minibatch and schedule.
absl::Status Measure(const LayerProfile& profile, PlanReport* report);

// Keys as in the reference data where they have one.
std::string ToJsonText(const LayerProfile& profile, const PlanReport& report);
// `explain` adds each pack, each GPU's end and what the bound is made of.
std::string ToText(const LayerProfile& profile, const PlanReport& report, bool explain);

}  // namespace harmony::paper
