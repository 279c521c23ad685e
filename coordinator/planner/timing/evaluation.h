#pragma once

// What a plan costs: the real dispatcher under a virtual clock, without processes, messages and
// faults. Each command starts when its lane is free and what it waits for has completed, and takes
// its modelled time; lanes that share a resource take turns, in the order in which their commands'
// time comes. (tests/sim/simulator runs the same commands with everything else around them.) PURE.

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/dispatch/issue/dispatcher.h"

namespace harmony::planner {

// Per step.
struct LaneTotals : plan::LaneWork {
  int64_t bytes = 0;  // copied
};

struct TimelineEntry {
  int lane = 0;
  // When all that it waits for is there, when it has its link or its share of the cores, when it is
  // done.
  Nanos ready, begin, end;
  command::Command command;
};

// "Per step" is of the last one that has a successor.
struct Estimate {
  // Of a step in the middle of a run: the distance of the ends of steps, and never less than any
  // lane, link or what else lanes share is busy per step.
  Nanos step;
  std::vector<LaneTotals> lanes;  // by LaneTable index
  plan::LaneResources resources;
  std::vector<Nanos> of_resources;   // plan::TimesOf, per step
  std::array<int64_t, 8> bytes{};    // per step over CPU-GPU links, by TrafficClass
  int64_t peer_bytes = 0;            // per step, device to device
  int64_t commands = 0;              // that were simulated
  std::vector<Bytes> peak_resident;  // by device
  // Of the step in the timeline: one with a successor, where there are three, for the next step's
  // forwards overlap its updates.
  Nanos step_begin, step_end;
  std::vector<TimelineEntry> events;  // of all steps; with `keep_timeline` only
};

// The first is a warm-up: three steps; two where they are so long that what is left of the one
// before hardly counts.
int StepsToRun(const plan::Plan& plan);

struct EvaluateOptions {
  // 0: StepsToRun. The first is a warm-up; one alone has a timeline, but no time of a step.
  int steps = 0;
  bool keep_timeline = false;
  // Of a run that is under way: its first step here, and after how many steps it writes checkpoints
  // (0: at the end).
  int64_t first_step = 0, save_steps = 0;
};

// ResourceExhausted when the plan cannot run (the dispatcher's message).
absl::StatusOr<Estimate> EvaluatePlan(const model::ModelSpec& model, const plan::Plan& plan,
                                      const dispatch::CostModel& costs,
                                      const EvaluateOptions& options = {});

// The plan of a shorter step, with as much memory on the devices beside what is kept there.
plan::Plan WithMicrobatches(const model::ModelSpec& model, plan::Plan plan, int microbatches);

// The step's time alone, nearly, and several times as quick: a dry run of the dispatcher without
// commands (Dispatcher::DryRun, which says what it asks of the costs). Of a step of very many
// microbatches a sample is run dry; of devices that are alike and do the same (DevicesForAll),
// each computing on its own, those that stand for all are (measured: 0.1% off where the gradient
// ring holds four times the largest group's gradients, 1% where it holds twice as much).
struct QuickDryRun {
  Nanos step;
  int64_t commands = 0;  // that were run dry
};
struct DryRunOptions {
  int steps = 0;  // 0: StepsToRun
  bool alike_devices = false;
};
// How many of such devices stand for all; 0: none do.
int DevicesToRun(const plan::Plan& plan, const dispatch::CostModel& costs);
absl::StatusOr<QuickDryRun> DryRunPlan(const model::ModelSpec& model, const plan::Plan& plan,
                                       const dispatch::CostModel& costs,
                                       const DryRunOptions& options = {});

}  // namespace harmony::planner
