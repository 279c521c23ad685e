#pragma once

// One job being carried out: drives a JobRunner (coordinator/runner) with what processes report,
// and carries its actions out on the segment and the streams. What its steps bring is StepLog's.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/ipc/segment.h"
#include "common/plan/machine.h"
#include "coordinator/runner/failure.h"
#include "coordinator/runner/job_runner.h"
#include "coordinator/service/processes/members.h"
#include "coordinator/service/replan/forecast.h"
#include "coordinator/service/run/gathering.h"
#include "coordinator/service/run/lane_monitor.h"
#include "coordinator/service/run/run_setup.h"
#include "coordinator/service/run/step_log.h"

namespace harmony::v1 {
class FromProcess;
class LaneProgress;
}  // namespace harmony::v1

namespace harmony::service {

struct RunEvents : StepEvents {
  std::function<void()> state_changed;
  // Nothing is issued any more; the run has left the segment's generation. OK: all steps, or
  // stopped as asked.
  std::function<void(const absl::Status&)> ended;
};

// Owner: Coordinator; loop thread only. `segment`, `members` and `deadline_clock`, by which
// processes are held to deadlines, must outlive it.
class JobRun {
 public:
  JobRun(RunSetup setup, const plan::MachineSpec& machine, ipc::Segment* segment, Members* members,
         const Clock* deadline_clock, RunEvents events);
  ~JobRun();

  // Opens metrics.jsonl and tells all attached processes the job. The arena has been allocated.
  absl::Status Start();

  void OnAttached(const Member& member);
  void OnLost(const Member& member);
  void OnMessage(const Member& member, const v1::FromProcess& message);
  // Also after the end: the last ones come when a process lets go of the job.
  void OnStats(Member& member, const v1::FromProcess& message);
  void OnTick();
  // Finish the step in flight, write a checkpoint, end.
  void Stop();
  // What the job waits for is tried again now.
  void TryNow();
  // Ends without a checkpoint, though it was told to write one.
  void Abandon() { Close(absl::OkStatus()); }
  // As Stop, but waits for processes that are missing as long as it takes: no step may be lost.
  void FinishStep();
  // As StepLog has it.
  void OnSearched(const std::optional<Forecast>& now, const dispatch::CostScales& scales,
                  const std::optional<Suggestion>& suggestion);

  const RunSetup& setup() const { return setup_; }
  const runner::JobRunner& runner() const { return runner_; }
  const LaneMonitor& monitor() const { return monitor_; }
  const StepLog& steps() const { return steps_; }
  // Of the last steps, against the model without any scales.
  dispatch::CostScales MeasuredScales() const;
  const plan::MinimalSwap& minimal_swap() const { return minimal_; }
  int64_t completed_steps() const;
  // That were recovered from; a coordinator that was replaced is one.
  int faults() const { return std::max(generations_ - (setup_.continues ? 0 : 1), 0); }
  const std::string& DeviceName(int device) const { return device_names_[device]; }
  bool ended() const { return ended_; }
  // For something outside: a file, room on a disk, a process that nobody starts. All that was
  // trained is kept.
  bool waiting() const {
    return runner_.waiting() || gathering_.refused() || misses_process_ || outcome_.has_value();
  }
  // The most that was seen of a device's memory: bindings and workspace together.
  Bytes PeakBytes(int device) const;
  Pacing pacing() const;  // of this run
  const std::vector<int64_t>& workspace_peaks() const { return workspace_peaks_; }
  // True when the lane's oldest command has all it waits for.
  bool HeadIsRunning(int lane) const;
  // Who has not answered yet, while the job is being started.
  std::vector<runner::ProcessId> Awaited() const;

 private:
  void SendSetup(const Member& member);
  void Feed(const runner::Event& event);
  void Carry(const runner::Action& action);
  void CarrySend(const runner::Send& send);
  void CarryReadRecords(uint32_t generation);
  void OnJobReady(const Member& member, int code, const std::string& message);
  // The process cannot take the job up now, and is asked again.
  void SetUpLater(const Member& member, const absl::Status& status);
  void OnLaneProgress(const v1::LaneProgress& progress);
  // The segment has what was trained, and would lose it with the job.
  bool HoldsSteps() const;
  // How long a stop waits for a process that is missing.
  Nanos PatienceOfStop() const;
  RunReadings Readings() const;
  // A job that has something to lose waits for who is away too long; another ends.
  void WatchForMissing(Nanos now);
  void End(const absl::Status& status);
  void Close(const absl::Status& status);

  const RunSetup setup_;
  ipc::Segment* const segment_;
  Members* const members_;
  // Of deadlines and of pauses between tries. What is measured has MonotonicClock, as in all
  // processes.
  const Clock* const deadline_clock_;
  const RunEvents events_;
  const command::ObjectTableLayout table_;
  const std::unique_ptr<const dispatch::ScaledCosts>
      costs_;                           // as the planner's, so that the order is, too
  const dispatch::AnalyticCosts pace_;  // of paced devices: as they are specified
  const plan::MinimalSwap minimal_;
  runner::JobRunner runner_;
  LaneMonitor monitor_;
  StepLog steps_;
  std::vector<int64_t> workspace_peaks_;   // by device
  std::vector<std::string> device_names_;  // by device
  // By session: processes count from their own start, which may be before the run's.
  std::map<uint64_t, Pacing> pacing_before_, pacing_now_;
  int generations_ = 0;
  Gathering gathering_;
  bool misses_process_ = false;  // for longer than the deadline
  const Nanos longest_pinning_;  // of the arena
  std::optional<Nanos> stop_asked_;
  Nanos all_there_;  // when nobody whom a stop has to wait for was absent, at last
  std::optional<absl::Status> outcome_;  // of a run whose last lines are not written yet
  bool ended_ = false;
};

}  // namespace harmony::service
