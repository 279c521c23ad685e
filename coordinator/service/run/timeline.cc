#include "coordinator/service/run/timeline.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/command/lane_kinds.h"
#include "coordinator/dispatch/costs/profiled_costs.h"
#include "coordinator/planner/timing/evaluation.h"
#include "harmony/v1/coordinator.pb.h"

namespace harmony::service {
namespace {

// Evaluated before the first step shown, so that it overlaps with its predecessor as it did.
constexpr int64_t kStepsOfRunUp = 2;

v1::TimelineEvent EventOn(const command::Lane& lane, const CommandLabel& label,
                          const plan::Plan& plan) {
  v1::TimelineEvent event;
  event.set_lane(DebugString(lane));
  event.set_device(command::IsHostLane(lane) ? -1 : lane.device);
  event.set_queue(command::TraitsOf(lane.kind).title);
  event.set_name(Describe(label, plan));
  event.set_step(label.step);
  return event;
}

// The steps whose tasks are in a timeline, and when the first task of the first one starts.
struct Extent {
  int64_t first = 0, last = -1;
  Nanos begin;

  void Add(int64_t step, Nanos start) {
    if (last < first || step < first || (step == first && start < begin)) begin = start;
    first = last < first ? step : std::min(first, step);
    last = std::max(last, step);
  }
};

Extent MeasuredExtent(const RecordedTimeline& recorded, const command::LaneTable& table) {
  Extent extent;
  for (int lane = 0; lane < table.size(); ++lane) {
    if (table.LaneAt(lane).kind != command::LaneKind::kCompute) continue;
    for (const MeasuredCommand& done : recorded.lanes[lane]) {
      extent.Add(done.label.step, done.start);
    }
  }
  return extent;
}

void FillMeasured(const RecordedTimeline& recorded, const command::LaneTable& table,
                  v1::Timeline* timeline) {
  for (int lane = 0; lane < table.size(); ++lane) {
    for (const MeasuredCommand& done : recorded.lanes[lane]) {
      v1::TimelineEvent event = EventOn(table.LaneAt(lane), done.label, recorded.plan);
      event.set_start_ns(done.start.count());
      event.set_end_ns(done.end.count());
      event.set_wait_ns(done.wait.count());
      event.set_generation(done.generation);
      event.set_issued_ns(done.issued.count());
      event.set_received_ns(done.received.count());
      event.set_command_wait_ns(done.command_wait.count());
      *timeline->add_events() = std::move(event);
    }
  }
}

void FillPlanned(const RecordedTimeline& recorded, const command::LaneTable& table,
                 const Extent& measured, v1::Timeline* timeline) {
  const std::unique_ptr<const dispatch::CostModel> costs = dispatch::MakeCosts(
      recorded.profile.get(), recorded.scales, recorded.model, recorded.plan, recorded.devices);
  planner::EvaluateOptions options;
  options.first_step = std::max(recorded.first_step, measured.first - kStepsOfRunUp);
  options.steps = static_cast<int>(std::min(recorded.end_step, measured.last + 1 + kStepsOfRunUp) -
                                   options.first_step);
  options.save_steps = recorded.save_steps;
  options.keep_timeline = true;
  absl::StatusOr<planner::Estimate> estimate =
      planner::EvaluatePlan(recorded.model, recorded.plan, *costs, options);
  if (!estimate.ok()) {
    timeline->set_why_not_planned(std::string(estimate.status().message()));
    return;
  }
  std::vector<planner::TimelineEntry>& entries = estimate->events;
  Extent planned;
  for (const planner::TimelineEntry& entry : entries) {
    if (table.LaneAt(entry.lane).kind != command::LaneKind::kCompute) continue;
    if (entry.command.header.step < measured.first) continue;
    planned.Add(entry.command.header.step, entry.ready);
  }
  const Nanos shift = measured.begin - planned.begin;
  std::stable_sort(entries.begin(), entries.end(),
                   [](const planner::TimelineEntry& a, const planner::TimelineEntry& b) {
                     return a.lane < b.lane;
                   });
  for (const planner::TimelineEntry& entry : entries) {
    const int64_t step = entry.command.header.step;
    if (step < measured.first || step > measured.last) continue;
    v1::TimelineEvent event =
        EventOn(table.LaneAt(entry.lane), LabelOf(entry.command), recorded.plan);
    event.set_start_ns((entry.ready + shift).count());  // a wait for the link included, as measured
    event.set_end_ns((entry.end + shift).count());
    *timeline->add_planned() = std::move(event);
  }
}

}  // namespace

void RecordedTimeline::DropBefore(int64_t step) {
  for (std::vector<MeasuredCommand>& lane : lanes) {
    lane.erase(std::remove_if(lane.begin(), lane.end(),
                              [&](const MeasuredCommand& done) { return done.label.step < step; }),
               lane.end());
  }
}

RecordedTimeline RecordTimeline(const JobRun& run, const std::vector<plan::DeviceSpec>& devices,
                                int64_t last_steps) {
  RecordedTimeline recorded;
  recorded.job_id = run.setup().id;
  recorded.model = run.setup().model;
  recorded.plan = run.setup().plan;
  recorded.profile = run.setup().profile;
  recorded.scales = run.setup().replan.scales;
  recorded.devices = devices;
  recorded.first_step = run.setup().start.first_step;
  recorded.end_step = run.setup().spec.max_steps;
  recorded.save_steps = run.setup().spec.save_steps;
  const LaneMonitor& monitor = run.monitor();
  recorded.completed_steps = std::min(run.completed_steps(), monitor.FirstOutstandingStep());
  int64_t first = monitor.first_whole_step();
  if (last_steps > 0) first = std::max(first, recorded.completed_steps - last_steps);
  for (int lane = 0; lane < monitor.num_lanes(); ++lane) {
    std::vector<MeasuredCommand>& kept = recorded.lanes.emplace_back();
    std::copy_if(monitor.Timeline(lane).begin(), monitor.Timeline(lane).end(),
                 std::back_inserter(kept),
                 [&](const MeasuredCommand& done) { return done.label.step >= first; });
  }
  return recorded;
}

void FillTimeline(const RecordedTimeline& recorded, v1::Timeline* timeline) {
  const command::LaneTable table(static_cast<int>(recorded.plan.devices.size()));
  const Extent measured = MeasuredExtent(recorded, table);
  timeline->set_job_id(recorded.job_id);
  timeline->set_aligned_at_step(measured.first);
  FillMeasured(recorded, table, timeline);
  if (measured.last < measured.first) {
    timeline->set_why_not_planned("no task of a step has run yet");
    return;
  }
  FillPlanned(recorded, table, measured, timeline);
}

}  // namespace harmony::service
