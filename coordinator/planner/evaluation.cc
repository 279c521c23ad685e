#include "coordinator/planner/evaluation.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace harmony {
namespace {

// Only the order of issue depends on it, and that hardly: it bounds what is kept in memory.
constexpr int kWindow = 256;

class Clock {
 public:
  Clock(const ModelSpec& model, const Plan& plan, const CostModel& costs,
        const EvaluateOptions& options)
      : options_(options),
        dispatcher_(model, plan, costs, {0, options.steps, 0, kWindow}),
        links_(LinksOfLanes(plan)),
        link_free_(links_.size()),
        finishes_(links_.size()),
        step_ends_(options.steps) {
    estimate_.lanes.resize(finishes_.size());
  }

  absl::StatusOr<Estimate> Run() {
    HARMONY_RETURN_IF_ERROR(dispatcher_.BeginGeneration(1, {}));
    while (!dispatcher_.done()) {
      HARMONY_ASSIGN_OR_RETURN(std::vector<Command> commands, dispatcher_.NextCommands());
      if (commands.empty()) return absl::InternalError("the dispatcher stands still");
      estimate_.commands += static_cast<int64_t>(commands.size());
      for (Command& command : commands) Execute(std::move(command));
      // Completions only pace the dispatcher: all that was issued counts as done.
      for (size_t lane = 0; lane < finishes_.size(); ++lane) {
        dispatcher_.OnLaneProgress(static_cast<int>(lane), finishes_[lane].size());
      }
    }
    return Summarize();
  }

 private:
  void Execute(Command command) {
    const CommandHeader& header = command.header;
    std::vector<Nanos>& lane = finishes_[header.lane];
    Nanos start = lane.empty() ? Nanos() : lane.back();
    for (const SemaphoreWait& wait : header.waits) {
      start = std::max(start, finishes_[wait.semaphore][wait.value - 1]);
    }
    // Commands are issued in the order in which all that they wait for is there, by the
    // dispatcher's reckoning, which is this one: so a link serves them in that order.
    Nanos& link_free = link_free_[links_[header.lane]];
    start = std::max(start, link_free);
    const Nanos finish = start + header.expected;
    link_free = finish;
    lane.push_back(finish);
    const auto* host = std::get_if<HostTask>(&command.body);
    if (host != nullptr && host->kind == HostTaskKind::kUpdate) {
      Nanos& end = step_ends_[static_cast<size_t>(header.step)];
      end = std::max(end, finish);
    }
    const bool once = host != nullptr && (host->kind == HostTaskKind::kInitialize ||
                                          host->kind == HostTaskKind::kCheckpoint);
    if (!once && header.step + 1 == options_.steps) Count(command);
    if (!options_.keep_timeline) return;
    const int index = static_cast<int>(header.lane);
    estimate_.events.push_back({index, start, finish, std::move(command)});
  }

  void Count(const Command& command) {
    LaneUse& use = estimate_.lanes[command.header.lane];
    use.busy += command.header.expected;
    ++use.commands;
    const auto* copy = std::get_if<Transfer>(&command.body);
    if (copy == nullptr) return;
    use.bytes += copy->size.count();
    if (copy->source.device >= 0 && copy->destination.device >= 0) {
      estimate_.peer_bytes += copy->size.count();
    } else {
      estimate_.bytes[static_cast<size_t>(copy->traffic)] += copy->size.count();
    }
  }

  Estimate Summarize() {
    const size_t last = step_ends_.size() - 1;
    const Nanos all = step_ends_[last] - step_ends_[0];
    estimate_.step = Nanos(all.count() / static_cast<int64_t>(last));
    std::vector<Nanos> busy;
    for (const LaneUse& lane : estimate_.lanes) busy.push_back(lane.busy);
    estimate_.step = std::max(estimate_.step, BusiestLink(links_, busy));
    estimate_.links = links_;
    estimate_.step_begin = step_ends_[last - 1];
    estimate_.step_end = step_ends_[last];
    return std::move(estimate_);
  }

  const EvaluateOptions options_;
  Dispatcher dispatcher_;
  const std::vector<int> links_;              // by lane
  std::vector<Nanos> link_free_;              // by link
  std::vector<std::vector<Nanos>> finishes_;  // by lane, of value i + 1
  std::vector<Nanos> step_ends_;              // of the last update
  Estimate estimate_;
};

}  // namespace

absl::StatusOr<Estimate> EvaluatePlan(const ModelSpec& model, const Plan& plan,
                                      const CostModel& costs, const EvaluateOptions& options) {
  return Clock(model, plan, costs, options).Run();
}

absl::StatusOr<RehearsedPlan> RehearsePlan(const ModelSpec& model, const Plan& plan,
                                           const CostModel& costs, int steps) {
  Dispatcher dispatcher(model, plan, costs, {0, steps, 0, kWindow});
  HARMONY_RETURN_IF_ERROR(dispatcher.BeginGeneration(1, {}));
  HARMONY_ASSIGN_OR_RETURN(const Rehearsal rehearsal, dispatcher.Rehearse());
  const Nanos all = rehearsal.step_ends.back() - rehearsal.step_ends.front();
  RehearsedPlan result{Nanos(all.count() / (steps - 1)), rehearsal.commands};
  for (Nanos busy : rehearsal.busy) result.step = std::max(result.step, busy);
  return result;
}

}  // namespace harmony
