#include "coordinator/planner/timing/evaluation.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <queue>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "common/plan/arena_layout.h"
#include "coordinator/dispatch/memory/kept_layout.h"
#include "coordinator/planner/timing/bounds.h"

namespace harmony::planner {
namespace {

class Clock {
 public:
  Clock(const model::ModelSpec& model, const plan::Plan& plan, const dispatch::CostModel& costs,
        const EvaluateOptions& options)
      : options_(options),
        num_devices_(static_cast<int>(plan.devices.size())),
        dispatcher_(model, plan, costs,
                    {options.first_step, options.first_step + options.steps, options.save_steps}),
        resources_(plan::ResourcesOfLanes(plan, costs.Cores())),
        clock_(resources_),
        lanes_(resources_.of_lane.size()),
        model_(model),
        gradient_times_(model),
        step_ends_(options.steps) {
    estimate_.lanes.resize(lanes_.size());
  }

  absl::StatusOr<Estimate> Run() {
    HARMONY_RETURN_IF_ERROR(dispatcher_.BeginGeneration(1, {}));
    for (;;) {
      HARMONY_RETURN_IF_ERROR(Receive());
      StartHeads();
      if (running_.empty()) break;
      now_ = running_.top().first;
      while (!running_.empty() && running_.top().first == now_) CompleteNext();
    }
    if (!dispatcher_.done()) return absl::InternalError("the dispatcher stands still");
    return Summarize();
  }

 private:
  struct LaneState {
    std::deque<command::Command> queue;  // the head may be running
    bool running = false;
    uint64_t completed = 0;
    int waits_for = -1;  // of the head: a lane whose semaphore is not there yet
    // Of a running task, how many of its gradient_waits are not over, and what it knows so far.
    size_t gradient_waits = 0;
    std::optional<model::GradientStall> stall;
    Nanos end;         // but for the stall
    size_t event = 0;  // its number, where events are kept
  };

  // What the dispatcher issues now.
  absl::Status Receive() {
    HARMONY_ASSIGN_OR_RETURN(std::vector<command::Command> commands, dispatcher_.NextCommands());
    estimate_.commands += static_cast<int64_t>(commands.size());
    for (command::Command& command : commands) {
      const int index = static_cast<int>(command.header.lane);
      lanes_[index].queue.push_back(std::move(command));
      if (lanes_[index].queue.size() == 1) changed_.push_back(index);
    }
    return absl::OkStatus();
  }

  // Of all heads whose time is now, what was issued first gets a resource first.
  void StartHeads() {
    std::erase_if(changed_, [this](int index) { return !CanStart(lanes_[index]); });
    std::sort(changed_.begin(), changed_.end(),
              [this](int a, int b) { return HeadId(a) < HeadId(b); });
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (int index : changed_) Start(index);
    changed_.clear();
  }

  uint64_t HeadId(int index) const { return lanes_[index].queue.front().header.id; }

  bool CanStart(LaneState& lane) const {
    lane.waits_for = -1;
    if (lane.running || lane.queue.empty()) return false;
    for (const command::SemaphoreWait& wait : lane.queue.front().header.waits) {
      if (lanes_[wait.semaphore].completed >= wait.value) continue;
      lane.waits_for = static_cast<int>(wait.semaphore);
      return false;
    }
    return true;
  }

  void Start(int index) {
    LaneState& lane = lanes_[index];
    lane.running = true;
    const command::Command& command = lane.queue.front();
    const Nanos end = clock_.Start(index, now_, command.header.expected).end;
    const int64_t step = command.header.step - options_.first_step;
    const auto* host = std::get_if<command::HostTask>(&command.body);
    if (host != nullptr && host->kind == command::HostTaskKind::kUpdate) {
      Nanos& step_end = step_ends_[static_cast<size_t>(step)];
      step_end = std::max(step_end, end);
    }
    const bool once = host != nullptr && (host->kind == command::HostTaskKind::kInitialize ||
                                          host->kind == command::HostTaskKind::kCheckpoint);
    if (!once && step + 2 == options_.steps) Count(command);
    if (options_.keep_timeline)
      estimate_.events.push_back({index, now_, end - command.header.expected, end, command});
    const auto* task = std::get_if<command::ComputeTask>(&command.body);
    if (task == nullptr || task->gradient_waits.empty()) {
      running_.emplace(end, index);
      return;
    }
    lane.gradient_waits = task->gradient_waits.size();
    const Nanos expected = command.header.expected;
    lane.stall.emplace(gradient_times_, BackwardTaskOf(*task), task->layers, task->awaited,
                       end - expected, expected);
    lane.end = end;
    lane.event = estimate_.events.size() - 1;
    GoOn(index);
  }

  // A running task that lacks buffers of gradients: whether it has them now, and when it ends then.
  void GoOn(int index) {
    LaneState& lane = lanes_[index];
    const auto& task = std::get<command::ComputeTask>(lane.queue.front().body);
    for (; lane.gradient_waits > 0; --lane.gradient_waits) {
      const size_t i = lane.gradient_waits - 1;
      const command::SemaphoreWait& wait = task.gradient_waits[i];
      if (lanes_[wait.semaphore].completed < wait.value) return;
      lane.stall->FreeAt(model_.references[task.gradients[i].reference].layer, now_);
    }
    const Nanos end = lane.end + lane.stall->total();
    if (options_.keep_timeline) estimate_.events[lane.event].end = end;
    running_.emplace(end, index);
  }

  void CompleteNext() {
    const int index = running_.top().second;
    running_.pop();
    LaneState& lane = lanes_[index];
    lane.queue.pop_front();
    lane.running = false;
    dispatcher_.OnLaneProgress(index, ++lane.completed);
    for (int other = 0; other < static_cast<int>(lanes_.size()); ++other) {
      if (lanes_[other].gradient_waits > 0) GoOn(other);
      if (other != index && lanes_[other].waits_for != index) continue;
      lanes_[other].waits_for = -1;
      changed_.push_back(other);
    }
  }

  void Count(const command::Command& command) {
    LaneTotals& totals = estimate_.lanes[command.header.lane];
    totals.busy += command.header.expected;
    ++totals.commands;
    const auto* copy = std::get_if<command::Transfer>(&command.body);
    if (copy == nullptr) return;
    totals.bytes += copy->size.count();
    if (copy->source.device >= 0 && copy->destination.device >= 0) {
      estimate_.peer_bytes += copy->size.count();
    } else {
      estimate_.bytes[static_cast<size_t>(copy->traffic)] += copy->size.count();
    }
  }

  Estimate Summarize() {
    const size_t last = step_ends_.size() - 1;
    const Nanos all = step_ends_[last] - step_ends_[0];
    estimate_.step = Nanos(all.count() / std::max<int64_t>(static_cast<int64_t>(last), 1));
    estimate_.of_resources =
        plan::TimesOf(resources_, {estimate_.lanes.begin(), estimate_.lanes.end()});
    estimate_.step = std::max(estimate_.step, *absl::c_max_element(estimate_.of_resources));
    estimate_.resources = resources_;
    for (int d = 0; d < num_devices_; ++d) {
      estimate_.peak_resident.push_back(dispatcher_.PeakBytes(d));
    }
    const size_t shown = last > 1 ? last - 1 : last;
    if (shown > 0) estimate_.step_begin = step_ends_[shown - 1];
    estimate_.step_end = step_ends_[shown];
    return std::move(estimate_);
  }

  const EvaluateOptions options_;
  const int num_devices_;
  dispatch::Dispatcher dispatcher_;
  const plan::LaneResources resources_;
  plan::ResourceClock clock_;
  std::vector<LaneState> lanes_;
  const model::ModelSpec& model_;
  const model::GradientTimes gradient_times_;
  Nanos now_;
  using Completion = std::pair<Nanos, int>;  // when, of which lane
  std::priority_queue<Completion, std::vector<Completion>, std::greater<>> running_;
  std::vector<int> changed_;      // lanes whose head may start
  std::vector<Nanos> step_ends_;  // of the last update
  Estimate estimate_;
};

// What the first devices do of those that all do the same.
plan::Plan OfFirstDevices(const model::ModelSpec& model, plan::Plan plan, int devices) {
  const int each_for = plan.backward_groups.back().devices.size() / devices;
  plan.devices.resize(static_cast<size_t>(devices));
  plan.num_microbatches /= each_for;
  plan.replicas /= each_for;
  const plan::DeviceSet all = AllDevices(plan);
  for (plan::LayerGroup& group : plan.forward_groups) group.devices = all;
  for (plan::LayerGroup& group : plan.backward_groups) {
    group.devices = all;
    group.gradient_parts /= each_for;
  }
  plan.gradient_ring =
      std::max(plan::ArenaLayout::MinimalRing(model, plan),
               Bytes(plan.gradient_ring.count() / each_for).AlignUp(kSlotAlignment));
  plan.arena_dynamic = plan::ArenaLayout(model, plan).dynamic_bytes();
  return plan;
}

// Their commands, and the host's, which are for the gradients of all devices. Lanes of a device
// have the same numbers whatever devices follow it, those of the host come after all.
class CostsOfFirstDevices : public dispatch::CostModel {
 public:
  CostsOfFirstDevices(const dispatch::CostModel& costs, const plan::Plan& of_all, int devices)
      : costs_(costs),
        first_lanes_(devices),
        lanes_(static_cast<int>(of_all.devices.size())),
        each_for_(static_cast<size_t>(of_all.backward_groups.back().devices.size() / devices)) {}
  Nanos Duration(const command::Command& command) const override {
    if (!std::holds_alternative<command::HostTask>(command.body)) return costs_.Duration(command);
    command::Command of_all = command;
    const command::Lane lane = first_lanes_.LaneAt(static_cast<int>(command.header.lane));
    of_all.header.lane = static_cast<uint32_t>(lanes_.IndexOf(lane));
    std::vector<int>& records = std::get<command::HostTask>(of_all.body).gradient_records;
    records.resize(records.size() * each_for_);
    return costs_.Duration(of_all);
  }

 private:
  const dispatch::CostModel& costs_;
  const command::LaneTable first_lanes_, lanes_;
  const size_t each_for_;  // devices that one of the first stands for
};

absl::StatusOr<QuickDryRun> DryRunWhole(const model::ModelSpec& model, const plan::Plan& plan,
                                        const dispatch::CostModel& costs, int steps) {
  dispatch::Dispatcher dispatcher(model, plan, costs, {.end_step = steps});
  HARMONY_RETURN_IF_ERROR(dispatcher.BeginGeneration(1, {}));
  HARMONY_ASSIGN_OR_RETURN(const dispatch::DryRunTimes times, dispatcher.DryRun());
  const Nanos all = times.step_ends.back() - times.step_ends.front();
  QuickDryRun result{Nanos(all.count() / (steps - 1)), times.commands};
  result.step = std::max(result.step, times.busiest);
  return result;
}

}  // namespace

int StepsToRun(const plan::Plan& plan) {
  constexpr int64_t kManyTasks = 100'000;
  const auto groups =
      static_cast<int64_t>(plan.forward_groups.size() + plan.backward_groups.size());
  return groups * plan.num_microbatches > kManyTasks ? 2 : 3;
}

absl::StatusOr<Estimate> EvaluatePlan(const model::ModelSpec& model, const plan::Plan& plan,
                                      const dispatch::CostModel& costs,
                                      const EvaluateOptions& options) {
  EvaluateOptions run = options;
  if (run.steps == 0) run.steps = StepsToRun(plan);
  return Clock(model, plan, costs, run).Run();
}

plan::Plan WithMicrobatches(const model::ModelSpec& model, plan::Plan plan, int microbatches) {
  const dispatch::KeptLayout before(model, plan);
  plan.num_microbatches = microbatches;
  const dispatch::KeptLayout after(model, plan);
  for (int d = 0; d < static_cast<int>(plan.devices.size()); ++d) {
    plan.devices[d].resident -= before.bytes(d) - after.bytes(d);
  }
  return plan;
}

int DevicesToRun(const plan::Plan& plan, const dispatch::CostModel& costs) {
  return costs.Cores().devices.empty() ? DevicesForAll(plan) : 0;
}

absl::StatusOr<QuickDryRun> DryRunPlan(const model::ModelSpec& model, const plan::Plan& plan,
                                       const dispatch::CostModel& costs,
                                       const DryRunOptions& options) {
  const int steps = options.steps > 0 ? options.steps : StepsToRun(plan);
  if (const int first = options.alike_devices ? DevicesToRun(plan, costs) : 0; first > 0) {
    const CostsOfFirstDevices of_first(costs, plan, first);
    return DryRunPlan(model, OfFirstDevices(model, plan, first), of_first, {steps});
  }
  absl::Status status;
  QuickDryRun result;
  result.step = OfAllMicrobatches(plan, [&](int microbatches) {
    const absl::StatusOr<QuickDryRun> part =
        microbatches == plan.num_microbatches
            ? DryRunWhole(model, plan, costs, steps)
            : DryRunWhole(model, WithMicrobatches(model, plan, microbatches), costs, steps);
    status.Update(part.status());
    if (!part.ok()) return Nanos();
    result.commands += part->commands;
    return part->step;
  });
  HARMONY_RETURN_IF_ERROR(status);
  return result;
}

}  // namespace harmony::planner
