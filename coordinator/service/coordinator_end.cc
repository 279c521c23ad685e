// How a run of the job at the head of the queue ends, and what its output directory then has.

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/io/atomic_file.h"
#include "common/plan/plan_json.h"
#include "coordinator/service/coordinator.h"
#include "coordinator/service/run/metrics_line.h"

namespace harmony::service {
void Coordinator::OnRunEnded(const absl::Status& status) {
  finish_tries_.Succeeded();
  if (status.ok()) {
    finish_when_quiet_ = true;  // the last figures of all processes belong to the summary
  } else {
    Fail(*current(), status);
  }
  BeginRelease();
}

absl::Status Coordinator::WriteEnd(store::JobRecord& record) {
  if (plan_tries_.failing()) HARMONY_RETURN_IF_ERROR(KeepPlan(record));
  HARMONY_RETURN_IF_ERROR(KeepSummary(record));
  absl::StatusOr<io::RunFile> run = io::ReadRunFile(record.output_dir);
  if (absl::IsNotFound(run.status())) {  // removed by somebody: what it said of the data is lost
    const plan::Plan& plan = run_->setup().plan;
    run = io::RunFile{record.result_keys, plan.resolved(), false, {}};
  }
  HARMONY_RETURN_IF_ERROR(run.status());
  run->finished = true;
  return io::WriteRunFile(record.output_dir, *run);
}

// False: what says so cannot be written, and is tried again.
bool Coordinator::FinishWell(store::JobRecord& record) {
  const Nanos now = Now();
  if (finish_tries_.failing() && !finish_tries_.Due(now) && !terminated_) return false;
  const absl::Status status = WriteEnd(record);
  if (status.ok()) {
    registry_.Report(record, absl::StrCat("finished after step ", record.completed_steps));
    SetState(record, store::JobState::kFinished);
    return true;
  }
  if (terminated_) {  // a successor finishes it, from the last checkpoint
    registry_.Report(record, absl::StrCat("not finished: ", status.message()));
    record.stop = store::StopIntent::kNone;
    SetState(record, store::JobState::kQueued);
    return true;
  }
  const Nanos pause = finish_tries_.Failed(now);
  registry_.Report(record,
                   absl::StrCat(status.message(), ": all else is written; the next try is in ",
                                FormatDuration(pause), ", or now with `resume`"));
  SetState(record, store::JobState::kWaiting);
  return false;
}

bool Coordinator::FinishRecord(store::JobRecord& record) {
  record.completed_steps = std::max(record.completed_steps, run_->completed_steps());
  // The runner has finished only when the last checkpoint and final/ have been written.
  if (run_->runner().state() == runner::JobRunner::State::kFinished &&
      record.completed_steps >= record.max_steps) {
    return FinishWell(record);
  }
  if (const absl::Status status = KeepSummary(record); !status.ok()) {
    registry_.Report(record, absl::StrCat("no summary.json: ", status.message()));
  }
  SettleStopped(record);
  return true;
}

void Coordinator::SettleStopped(store::JobRecord& record) {
  if (record.stop == store::StopIntent::kReplan) return ChangePlan(record);
  registry_.Report(record, absl::StrCat("stopped after step ", record.completed_steps));
  switch (record.stop) {
    case store::StopIntent::kCancel:
      return SetState(record, store::JobState::kCancelled);
    case store::StopIntent::kPause:
      return SetState(record, store::JobState::kPaused);
    case store::StopIntent::kShutdown:
    case store::StopIntent::kReplan:
    case store::StopIntent::kNone:
      record.stop = store::StopIntent::kNone;
      return SetState(record, store::JobState::kQueued);
  }
}

// What cannot be written now is tried again with the next step.
void Coordinator::NoteHardware(store::JobRecord& record) {
  const std::vector<std::string> devices = members_.ComputesOn();
  absl::StatusOr<io::RunFile> run = io::ReadRunFile(record.output_dir);
  if (!run.ok() || devices.empty()) return;
  const std::vector<io::RunHardware> noted = run->computed_on;
  const std::vector<std::string> before =
      io::SetHardware(run_first_step_, devices, run->computed_on);
  const bool changed = run->computed_on != noted;
  if (changed && !io::WriteRunFile(record.output_dir, *run).ok()) return;
  hardware_noted_ = true;
  const std::string now = absl::StrJoin(devices, " and ");
  if (!before.empty()) {
    registry_.Report(record, absl::StrCat("goes on after step ", run_first_step_, " on ", now,
                                          "; before it ran on ", absl::StrJoin(before, " and "),
                                          ": the last bits of its results may be others than they "
                                          "would have been there"));
  } else if (changed && devices.size() > 1) {
    registry_.Report(record, absl::StrCat("runs on ", now,
                                          ": the last bits of its results depend on which of them "
                                          "computes what, and so on the plan"));
  }
}

// Of every start: the plan may be another one by now.
absl::Status Coordinator::KeepPlan(const store::JobRecord& record) {
  absl::Status status = io::WriteFileAtomically(record.output_dir + "/plan.json",
                                                plan::PlanFileText(run_->setup().plan));
  if (status.ok()) {
    plan_tries_.Succeeded();
    return status;
  }
  if (!plan_tries_.failing()) {
    registry_.Report(record, absl::StrCat("no plan.json yet: ", status.message()));
  }
  plan_tries_.Failed(Now());
  return status;
}

absl::Status Coordinator::KeepSummary(store::JobRecord& record) {
  const RunSummary summary = SummarizeRun(*run_, (Now() - run_started_).seconds());
  record.summary = summary.text;
  record.summary_json = summary.json;
  return io::WriteFileAtomically(record.output_dir + "/summary.json", summary.json);
}

void Coordinator::Fail(store::JobRecord& record, const absl::Status& status) {
  record.error = std::string(status.message());
  record.error_code = status.raw_code();
  registry_.Report(record, absl::StrCat("failed: ", record.error));
  SetState(record, store::JobState::kFailed);
}

}  // namespace harmony::service
