#pragma once

// What the steps of a run have brought, as the run's processes complete them: the losses and times
// that metrics.jsonl and the progress view show, and whether steps take as long as the plan says.

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/command/objects.h"
#include "common/ipc/segment.h"
#include "coordinator/service/replan/drift.h"
#include "coordinator/service/replan/forecast.h"
#include "coordinator/service/replan/replan.h"
#include "coordinator/service/run/lane_monitor.h"
#include "coordinator/service/run/metrics_log.h"
#include "coordinator/service/run/run_setup.h"
#include "harmony/v1/gpu.pb.h"

namespace harmony::service {

// A plan that would be faster, as predicted by measured times: seconds of its steps, and of those
// of the plan in force.
struct Suggestion {
  double seconds = 0, instead_of = 0;
};

// One line of metrics.jsonl, and what the progress view shows of a step.
struct StepMetrics {
  int64_t step = 0;  // from 1
  double loss = 0;
  std::optional<double> grad_norm;  // with clipping
  double learning_rate = 0;
  double tokens_per_second = 0;
  double seconds = 0;
  SwapTotals swap = {};
  std::optional<double> predicted_seconds;  // by the plan
  std::optional<Suggestion> suggestion;
  std::vector<v1::GpuReadings> gpus;  // at the end of the step; as Member has them
};

struct StepEvents {
  std::function<void(const StepMetrics&)> step_completed;
  std::function<void(const std::string&)> report;  // a line for the job's log
  // Steps drift from what the plan says, and the last search is a while ago.
  std::function<void()> drifts;
  // What replan() says is another thing now, and to be kept.
  std::function<void()> change_judged;
};

// How the run stands when steps have completed.
struct RunReadings {
  int64_t completed_steps = 0;
  uint32_t generation = 0;
  std::vector<int64_t> peak_bytes;    // by device
  std::vector<v1::GpuReadings> gpus;  // as Member has them
};

// Owner: JobRun; loop thread only. `setup`, `segment`, which holds the steps' scalars, `monitor`,
// which has seen the run's commands, and `clock` must outlive it.
class StepLog {
 public:
  StepLog(const RunSetup& setup, const ipc::Segment* segment, LaneMonitor* monitor,
          const Clock* clock, StepEvents events);

  // Opens metrics.jsonl, with the lines of the steps that stay done. Nothing is written before.
  absl::Status Open();
  // Others may have the file now, and nothing is written any more.
  void Close() { metrics_.reset(); }

  // A step that begins from here on is timed from now; the first one is not like the others.
  void BeginGeneration();
  // All steps below `end_step` have completed: writes those that are not written yet. Scalars of a
  // step whose line is due must still be in the segment.
  void OnCompleted(int64_t end_step, const RunReadings& run);
  // A plan was searched again after `drifts`, with so many steps completed. `now`: what the plan in
  // force is predicted to take by `scales`; steps are held against it from now on.
  void OnSearched(int64_t completed_steps, const std::optional<Forecast>& now,
                  const dispatch::CostScales& scales, const std::optional<Suggestion>& suggestion);

  // ---- Of metrics.jsonl; see MetricsLog ----
  void OnTick();
  void Finish();
  void Hurry();
  // No line is left that could not be written; true while there is no file.
  bool complete() const { return !metrics_ || metrics_->complete(); }

  // ---- What there is to tell ----
  // Steps below have their line, or need none. 0: not opened.
  int64_t written_steps() const { return written_steps_; }
  const std::optional<StepMetrics>& last_step() const { return last_step_; }
  // Completed since this was made, in whatever generation.
  int64_t steps_seen() const { return static_cast<int64_t>(step_seconds_.size()); }
  // Seconds per step lately; 0: unknown.
  double recent_seconds_per_step() const { return recent_seconds_; }
  // Of the last `steps` run here; 0 when there are none.
  double MedianSecondsPerStep(int64_t steps = std::numeric_limits<int64_t>::max()) const;
  // What the run is held against.
  const std::optional<Forecast>& forecast() const { return forecast_; }
  // Measured over predicted, less 1, of the last few steps; 0: unknown.
  double drift() const { return drift_ ? drift_->drift() : 0; }
  const std::optional<Suggestion>& suggestion() const { return suggestion_; }
  const ReplanState& replan() const { return replan_; }

 private:
  absl::Status Write(int64_t step, const RunReadings& run);
  // What the step took is held against the prediction.
  void WatchDrift(double seconds, int64_t completed_steps);
  bool IsLogged(int64_t step) const;
  absl::StatusOr<command::StepScalars> ReadScalars(int64_t step) const;

  const RunSetup& setup_;
  const ipc::Segment* const segment_;
  LaneMonitor* const monitor_;
  const Clock* const clock_;  // the processes' own: what they measured is told by it
  const StepEvents events_;
  const command::ObjectTableLayout table_;
  std::optional<MetricsLog> metrics_;
  int64_t written_steps_ = 0;
  std::optional<StepMetrics> last_step_;
  Nanos last_step_end_;
  bool first_of_generation_ = true;
  double recent_seconds_ = 0;
  std::vector<float> step_seconds_;
  std::optional<Forecast> forecast_;
  std::optional<DriftMonitor> drift_;
  std::optional<Suggestion> suggestion_;
  ReplanState replan_;
};

}  // namespace harmony::service
