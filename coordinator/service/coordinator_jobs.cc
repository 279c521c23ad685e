// What users ask of jobs: submission, stopping, looking.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/ipc/host_memory.h"
#include "common/job/job_file.h"
#include "common/rpc/command_codec.h"
#include "coordinator/service/coordinator.h"

namespace harmony::service {

HostLimits Coordinator::Limits() const {
  HostLimits limits;
  limits.arena = segment_->arena_size();
  limits.records = segment_->record_capacity();
  limits.cursors = segment_->cursor_capacity();
  limits.devices_touched = devices_touched_;
  if (phase_ == Phase::kIdle) limits.available = ipc::AvailableHostMemory();
  return limits;
}

absl::StatusOr<std::string> Coordinator::Enqueue(AdmittedJob admitted, const std::string& yaml) {
  for (auto& [number, other] : registry_.jobs()) {
    if (store::IsEnded(other.state) || other.output_dir != admitted.spec.output_dir) continue;
    if (!IsOurs(other)) continue;
    const bool ends = other.state == store::JobState::kPaused ||
                      other.stop == store::StopIntent::kCancel ||
                      other.stop == store::StopIntent::kPause;
    if (other.result_keys == admitted.result_keys && !ends) return other.id();
    return absl::AlreadyExistsError(absl::StrCat("output_dir ", other.output_dir, " is that of ",
                                                 other.id(), ", which is ", ToString(other.state)));
  }
  const io::RunFile run{admitted.result_keys,        admitted.plan.resolved(),
                        /*finished=*/false,          admitted.data,
                        admitted.output.extensions,  admitted.spec.save_steps,
                        admitted.spec.logging_steps, admitted.output.computed_on};
  std::string moved_to;
  // A job of ours that was paused is not of this run (see above), and holds its own lock.
  HARMONY_ASSIGN_OR_RETURN(OutputDirLock lock, PrepareOutputDir(admitted.spec.output_dir,
                                                                admitted.output, run, &moved_to));
  store::JobRecord record;
  record.yaml = yaml;
  record.job_json = job::JobSpecToJson(admitted.spec);
  record.config_json = admitted.config_json;
  record.plan = rpc::SerializePlan(admitted.plan);
  record.plan_text = admitted.plan_text;
  record.profile = admitted.profile;
  record.result_keys = admitted.result_keys;
  record.output_dir = admitted.spec.output_dir;
  record.max_steps = admitted.spec.max_steps;
  record.submitted_at =
      std::max(UtcTimeStamp(), jobs_since_);  // ours, also if clocks were set back
  const std::string old_output =
      moved_to.empty() ? "" : absl::StrCat("the old output_dir is now ", moved_to);
  const absl::StatusOr<store::JobRecord*> queued = registry_.Add(std::move(record));
  if (!queued.ok()) {
    return moved_to.empty() ? queued.status() : WithContext(queued.status(), old_output);
  }
  store::JobRecord* const added = *queued;
  output_locks_.emplace(added->number, std::move(lock));
  for (const std::string& note : admitted.notes) registry_.Report(*added, note);
  if (!old_output.empty()) registry_.Report(*added, old_output);
  NameOthers(*added);
  const std::string id = added->id();
  StartNext();
  return id;
}

void Coordinator::NameOthers(const store::JobRecord& record) {
  for (auto& [number, other] : registry_.jobs()) {
    if (IsOurs(other) || store::IsEnded(other.state)) continue;
    const std::string which =
        absl::StrCat(other.id(), " of ", other.submitted_at, " (output_dir ", other.output_dir,
                     ", step ", other.completed_steps, " of ", other.max_steps, ")");
    if (other.output_dir == record.output_dir) {
      registry_.Report(other, absl::StrCat("taken over by ", record.id()));
      registry_.Report(record, absl::StrCat("takes over the unfinished ", which));
      SetState(other, store::JobState::kCancelled);
    } else {
      registry_.Report(record,
                       absl::StrCat("an earlier run left ", which,
                                    " unfinished: it is left as it is; to go on with it, run "
                                    "its job file again"));
    }
  }
}

absl::StatusOr<const store::JobRecord*> Coordinator::RequestStop(const std::string& id,
                                                                 store::StopIntent intent,
                                                                 store::JobState at_once) {
  HARMONY_ASSIGN_OR_RETURN(store::JobRecord* const record, registry_.Find(id));
  if (store::IsEnded(record->state)) {
    return absl::FailedPreconditionError(
        absl::StrCat(record->id(), " is ", ToString(record->state), " already"));
  }
  if (!store::IsActive(record->state)) {
    SetState(*record, at_once);
    return record;
  }
  const bool again = record->stop == intent && intent == store::StopIntent::kCancel;
  const bool waits = record->state == store::JobState::kWaiting;
  record->stop = intent;
  if (current_ == record->number) {
    if (again && waits && phase_ != Phase::kPreparing) {
      registry_.Report(*record, "cancelled again: ending without what cannot be written");
      if (phase_ != Phase::kRunning) return EndUnwritten(*record);
      run_->Abandon();
    }
    if (phase_ == Phase::kRunning) run_->Stop();
    HurryTries();
  }
  if (phase_ != Phase::kRunning || !run_->waiting()) SetState(*record, store::JobState::kStopping);
  registry_.Save(*record);
  return record;
}

void Coordinator::HurryTries() {
  if (files_ != nullptr) files_->HurryEnd();
  begin_tries_.Hurry();
}

const store::JobRecord* Coordinator::EndUnwritten(store::JobRecord& record) {
  SettleStopped(record);
  if (phase_ == Phase::kPutOff) {
    BeginRelease();
  } else {
    finish_when_quiet_ = false;
    TryRelease();
  }
  return &record;
}

absl::StatusOr<const store::JobRecord*> Coordinator::Cancel(const std::string& id) {
  return RequestStop(id, store::StopIntent::kCancel, store::JobState::kCancelled);
}

absl::StatusOr<const store::JobRecord*> Coordinator::Pause(const std::string& id) {
  return RequestStop(id, store::StopIntent::kPause, store::JobState::kPaused);
}

absl::StatusOr<const store::JobRecord*> Coordinator::Resume(const std::string& id,
                                                            const store::JobRecord& ready) {
  HARMONY_ASSIGN_OR_RETURN(store::JobRecord* const record, registry_.Find(id));
  if (record->state == store::JobState::kWaiting) {
    // One that was to be paused goes on when it has stopped.
    if (record->stop == store::StopIntent::kPause) record->stop = store::StopIntent::kNone;
    if (phase_ == Phase::kRunning) run_->TryNow();
    HurryTries();
    registry_.Save(*record);
    return record;
  }
  if (record->state != store::JobState::kPaused) {
    return absl::FailedPreconditionError(
        absl::StrCat(record->id(), " is ", ToString(record->state), ", not paused"));
  }
  record->stop = store::StopIntent::kNone;
  TakePlan(*record, ready);
  SetState(*record, store::JobState::kQueued);
  StartNext();
  return record;
}

absl::Status Coordinator::Watch(const std::string& id, Nanos interval,
                                std::shared_ptr<ProgressStream> stream) {
  HARMONY_ASSIGN_OR_RETURN(const store::JobRecord* const record, registry_.Find(id));
  watchers_.emplace_back(record->number, interval, std::move(stream));
  NotifyWatchers(MonotonicClock().Now());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Coordinator::Prune(const std::string& ended_before) {
  NotifyWatchers(MonotonicClock().Now());  // those of ended jobs get their last snapshot, and go
  return registry_.Prune(ended_before, [this](int64_t number) {
    // What a job that has just ended leaves is still being given back under its name.
    if (phase_ != Phase::kIdle && number == current_) return true;
    return std::any_of(watchers_.begin(), watchers_.end(),
                       [number](const Watcher& watcher) { return watcher.job() == number; });
  });
}

absl::StatusOr<RecordedTimeline> Coordinator::TimelineOf(const std::string& id,
                                                         int64_t last_steps) {
  HARMONY_ASSIGN_OR_RETURN(const store::JobRecord* const record, registry_.Find(id));
  if (run_ != nullptr && current_ == record->number) {
    return RecordTimeline(*run_, machine_.devices, last_steps);
  }
  for (auto past = past_timelines_.rbegin(); past != past_timelines_.rend(); ++past) {
    if (past->job_id != record->id()) continue;
    RecordedTimeline found = *past;
    if (last_steps > 0) found.DropBefore(found.completed_steps - last_steps);
    return found;
  }
  return absl::NotFoundError(
      absl::StrCat("no timeline of ", record->id(), ", which is ", ToString(record->state),
                   ": it is kept of the running job and of the last ", kTimelinesKept + 1,
                   " that ran since this coordinator was started"));
}

}  // namespace harmony::service
