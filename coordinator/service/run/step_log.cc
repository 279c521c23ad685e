#include "coordinator/service/run/step_log.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/service/run/metrics_line.h"

namespace harmony::service {
namespace {

constexpr char kDriftAdvice[] =
    "; a plan by the times that this run measures: replan: suggest in the job";

}  // namespace

StepLog::StepLog(const RunSetup& setup, const ipc::Segment* segment, LaneMonitor* monitor,
                 const Clock* clock, StepEvents events)
    : setup_(setup),
      segment_(segment),
      monitor_(monitor),
      clock_(clock),
      events_(std::move(events)),
      table_(setup.model, setup.plan.num_microbatches, setup.plan.replicas),
      last_step_end_(clock->Now()),
      forecast_(setup.forecast),
      replan_(setup.replan) {
  if (forecast_) drift_.emplace(forecast_->step_seconds);
}

absl::Status StepLog::Open() {
  // While the segment lives, every line was written before its step could be forgotten.
  const int64_t keep =
      setup_.continues ? std::numeric_limits<int64_t>::max() : setup_.start.first_step;
  HARMONY_ASSIGN_OR_RETURN(MetricsFile file,
                           MetricsFile::Open(setup_.spec.output_dir + "/metrics.jsonl", keep));
  if (file.last_step_cut() > 0) {
    events_.report(absl::StrCat("steps ", setup_.start.first_step + 1, " to ", file.last_step_cut(),
                                " were lost and are run again"));
  }
  HARMONY_ASSIGN_OR_RETURN(
      metrics_,
      MetricsLog::Make(std::move(file), KeptLines::Inherited(setup_.id), keep, events_.report));
  written_steps_ = std::max(metrics_->last_step(), setup_.start.first_step);
  return absl::OkStatus();
}

void StepLog::OnTick() {
  if (metrics_) metrics_->OnTick(clock_->Now());
}

void StepLog::Finish() {
  if (metrics_) metrics_->Finish(clock_->Now());
}

void StepLog::Hurry() {
  if (metrics_) metrics_->Hurry();
}

void StepLog::BeginGeneration() {
  last_step_end_ = clock_->Now();
  first_of_generation_ = true;
}

void StepLog::OnCompleted(int64_t end_step, const RunReadings& run) {
  for (; written_steps_ < end_step && metrics_; ++written_steps_) {
    absl::Status status = Write(written_steps_, run);
    // Scalars are kept until their line is written; of steps that have none they may be gone.
    if (!status.ok() && IsLogged(written_steps_)) {
      events_.report(
          absl::StrCat("no metrics of step ", written_steps_ + 1, ": ", status.message()));
    }
  }
}

bool StepLog::IsLogged(int64_t step) const {
  return (step + 1) % setup_.spec.logging_steps == 0 || step + 1 == setup_.spec.max_steps;
}

absl::StatusOr<command::StepScalars> StepLog::ReadScalars(int64_t step) const {
  const command::ObjectKey key{command::ObjectKind::kStepScalars, static_cast<int32_t>(step % 2),
                               0};
  HARMONY_ASSIGN_OR_RETURN(const command::ObjectView view,
                           segment_->ReadRecord(table_.IndexOf(key)));
  if (view.state != command::ObjectState::kClean ||
      view.version != static_cast<uint64_t>(step) + 1) {
    return absl::NotFoundError(
        absl::StrCat("its scalars are gone (version ", view.version, " is there)"));
  }
  command::StepScalars scalars;
  std::memcpy(&scalars, segment_->Arena(view.offset), sizeof(scalars));
  return scalars;
}

absl::Status StepLog::Write(int64_t step, const RunReadings& run) {
  HARMONY_ASSIGN_OR_RETURN(const command::StepScalars scalars, ReadScalars(step));
  StepMetrics metrics;
  // The loop may come to it late, and to two of them at once.
  Nanos end = monitor_->EndOfStep(step).value_or(Nanos());
  if (end <= last_step_end_) end = clock_->Now();  // completed before a fault
  metrics.step = step + 1;
  metrics.loss = scalars.loss_sum / static_cast<double>(scalars.label_count);
  if (setup_.plan.clip) metrics.grad_norm = scalars.grad_norm;
  metrics.learning_rate = scalars.learning_rate;
  metrics.seconds = (end - last_step_end_).seconds();
  metrics.tokens_per_second = static_cast<double>(scalars.tokens) / metrics.seconds;
  if (drift_) metrics.predicted_seconds = drift_->predicted_seconds();
  metrics.suggestion = suggestion_;
  metrics.swap = monitor_->TakeStep(step);
  metrics.gpus = run.gpus;
  last_step_end_ = end;
  recent_seconds_ =
      recent_seconds_ == 0 ? metrics.seconds : 0.8 * recent_seconds_ + 0.2 * metrics.seconds;
  if (IsLogged(step)) {
    metrics_->Append(metrics.step, MetricsLine(metrics, run.peak_bytes, run.generation),
                     clock_->Now());
  }
  step_seconds_.push_back(static_cast<float>(metrics.seconds));
  last_step_ = metrics;
  events_.step_completed(metrics);
  if (!std::exchange(first_of_generation_, false)) {
    WatchDrift(metrics.seconds, run.completed_steps);
  }
  return absl::OkStatus();
}

void StepLog::WatchDrift(double seconds, int64_t completed_steps) {
  if (!drift_) return;
  if (const auto line = drift_->OnStep(seconds)) {
    const bool advise = drift_->drifting() && setup_.spec.replan == job::ReplanMode::kOff;
    events_.report(absl::StrCat(*line, advise ? kDriftAdvice : ""));
  }
  // The first step of a start is not like the others.
  if (replan_.seconds_before > 0 && steps_seen() > kStepsToJudge) {
    events_.report("replan: " + JudgeChange(MedianSecondsPerStep(kStepsToJudge), &replan_));
    events_.change_judged();
  }
  if (drift_->drifting() && completed_steps >= NextSearch(replan_)) events_.drifts();
}

void StepLog::OnSearched(int64_t completed_steps, const std::optional<Forecast>& now,
                         const dispatch::CostScales& scales,
                         const std::optional<Suggestion>& suggestion) {
  replan_.step = completed_steps;
  suggestion_ = suggestion;
  if (!now) return;
  replan_.scales = scales;
  forecast_->step_seconds = now->step_seconds;
  drift_.emplace(now->step_seconds);
}

double StepLog::MedianSecondsPerStep(int64_t steps) const {
  if (step_seconds_.empty()) return 0;
  std::vector<float> sorted(step_seconds_.end() - std::min(steps, steps_seen()),
                            step_seconds_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

}  // namespace harmony::service
