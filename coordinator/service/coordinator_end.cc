// How a run of the job at the head of the queue ends, and what becomes of the job.

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/service/coordinator.h"

namespace harmony::service {

void Coordinator::OnRunEnded(const absl::Status& status) {
  if (status.ok()) {
    finish_when_quiet_ = true;  // the last figures of all processes belong to the summary
  } else {
    Fail(*current(), status);
  }
  BeginRelease();
}

// False: what says so cannot be written, and is tried again.
bool Coordinator::FinishWell(store::JobRecord& record) {
  const Nanos now = Now();
  if (!files_->EndIsDue(now) && !terminated_) return false;
  const absl::Status status = files_->WriteEnd(record);
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
  files_->PutEndOff(record, status, now);
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
  if (const absl::Status status = files_->WriteSummary(record); !status.ok()) {
    registry_.Report(record, absl::StrCat("no summary.json: ", status.message()));
  }
  SettleStopped(record);
  return true;
}

void Coordinator::SettleStopped(store::JobRecord& record) {
  if (record.stop == store::StopIntent::kReplan) {
    changes_.TakeFound();
    goes_on_ = record.number;
    return SetState(record, store::JobState::kQueued);
  }
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

void Coordinator::Fail(store::JobRecord& record, const absl::Status& status) {
  record.error = std::string(status.message());
  record.error_code = status.raw_code();
  registry_.Report(record, absl::StrCat("failed: ", record.error));
  SetState(record, store::JobState::kFailed);
}

}  // namespace harmony::service
