#include "coordinator/service/coordinator.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/ipc/host_memory.h"
#include "common/job/job_file.h"
#include "common/rpc/command_codec.h"
#include "coordinator/service/jobs/plan_anew.h"
#include "coordinator/service/run/prepare_run.h"
#include "harmony/v1/attach.pb.h"
#include "harmony/v1/coordinator.pb.h"

namespace harmony::service {
namespace {

// Processes that still hold the memory of a job that has ended are killed then.
constexpr Nanos kLetGoDeadline = Seconds(30);
// After so long a job's log says whom its run waits for, then after twice as long each time.
constexpr Nanos kAwaitedPause = Seconds(10), kLongestAwaitedPause = Seconds(1800);
// Twenty ticks: a loop that is that late was stopped, or is too busy to judge others.
constexpr Nanos kLongestGap = Seconds(1);

}  // namespace

Coordinator::Coordinator(plan::MachineSpec machine, ipc::Segment* segment, JobRegistry registry,
                         Mailbox* mailbox, const Clock& clock, std::string jobs_since)
    : machine_(std::move(machine)),
      jobs_since_(std::move(jobs_since)),
      deadline_clock_(clock, kLongestGap),
      segment_(segment),
      registry_(std::move(registry)),
      mailbox_(mailbox),
      members_(static_cast<int>(machine_.devices.size()),
               {[this](const Member& member) { OnAttached(member); },
                [this](const Member& member) { OnLost(member); }}),
      fence_(&members_, /*predecessor=*/segment->generation() > 0),
      changes_(
          &machine_, &registry_, mailbox, [this] { return Limits(); },
          [this] { return current()->stop == store::StopIntent::kNone && !terminated_; }) {}

Nanos Coordinator::Now() { return MonotonicClock().Now(); }

Coordinator::~Coordinator() {
  if (background_.joinable()) background_.join();
}

void Coordinator::Begin() {
  NothingAwaited();
  for (auto& [number, record] : registry_.jobs()) {
    if (!store::IsActive(record.state) || !IsOurs(record)) continue;
    // The segment may still hold all of its state: then it is the next (NextJob).
    registry_.Report(record, "the coordinator was restarted");
    record.state = store::JobState::kQueued;
    if (record.stop == store::StopIntent::kShutdown || record.stop == store::StopIntent::kReplan) {
      record.stop = store::StopIntent::kNone;
    }
    registry_.Save(record);
  }
  StartNext();
}

store::JobRecord* Coordinator::current() {
  const auto found = registry_.jobs().find(current_);
  return found == registry_.jobs().end() ? nullptr : &found->second;
}

void Coordinator::SetState(store::JobRecord& record, store::JobState state) {
  if (record.state == state) return;
  spdlog::info("job={} state={}", record.id(), ToString(state));
  record.state = state;
  if (store::IsEnded(state)) {
    record.ended_at = UtcTimeStamp();
    output_locks_.erase(record.number);
  }
  registry_.Save(record);
  for (Watcher& watcher : watchers_) {
    if (watcher.job() == record.number) watcher.Hurry();
  }
}

void Coordinator::Background(std::function<void()> work) {
  if (background_.joinable()) background_.join();  // it has posted its result already
  background_ = std::thread(std::move(work));
}

// ---- Processes ----

void Coordinator::OnHello(uint64_t session, const std::shared_ptr<ProcessLink>& link,
                          const v1::FromProcess& message) {
  members_.OnHello(session, link, message.hello());
}

void Coordinator::OnMessage(uint64_t session, const v1::FromProcess& message) {
  Member* const member = members_.FindSession(session);
  if (member == nullptr) return;
  if (message.has_stats()) {
    if (run_ != nullptr) return run_->OnStats(*member, message);
    member->pacing = {message.stats().paced(), message.stats().overruns()};
    member->gpus.clear();  // they are read while a job runs
  } else if (phase_ == Phase::kRunning) {
    run_->OnMessage(*member, message);
  } else if (phase_ == Phase::kLettingGo && message.has_quiesced() &&
             message.quiesced().generation() == release_generation_) {
    fence_.OnQuiesced(member->id);
    TryRelease();
  }
}

void Coordinator::OnAttached(const Member& member) {
  fence_.OnAttached(member.id);
  if (phase_ == Phase::kRunning) return run_->OnAttached(member);
  StartNext();  // it may be what the next job waits for
}

void Coordinator::OnLost(const Member& member) {
  fence_.OnLost(member.id);
  if (phase_ == Phase::kRunning) run_->OnLost(member);
}

void Coordinator::OnSessionClosed(uint64_t session) { members_.OnSessionClosed(session); }

// ---- The job at the head of the queue ----

void Coordinator::StartNext() {
  if (phase_ != Phase::kIdle || terminated_) return;
  store::JobRecord* const next = NextJob();
  const std::vector<runner::ProcessId> unseen = fence_.Unseen();
  if (next == nullptr) {
    // A predecessor may have died before it gave all back.
    if (unseen.empty() && !absl::IsNotFound(segment_->ReadJob().status())) Release();
    return;
  }
  // Processes of a predecessor's time may still write for the job before.
  if (!unseen.empty() && HoldsAnotherJob(*segment_, *next)) return ReportAwaited(*next, unseen);
  DropRun();
  current_ = next->number;
  begin_tries_.Succeeded();  // those of the job before
  if (next->started_at.empty()) next->started_at = UtcTimeStamp();
  SetState(*next, store::JobState::kStarting);
  Prepare(*next);
}

store::JobRecord* Coordinator::NextJob() {
  const auto going_on = registry_.jobs().find(std::exchange(goes_on_, 0));
  if (going_on != registry_.jobs().end() && going_on->second.state == store::JobState::kQueued) {
    return &going_on->second;
  }
  store::JobRecord* first = nullptr;
  for (auto& [number, record] : registry_.jobs()) {
    if (record.state != store::JobState::kQueued || !IsOurs(record)) continue;
    if (HoldsJob(*segment_, record)) return &record;
    if (first == nullptr) first = &record;
  }
  return first;
}

void Coordinator::DropRun() {
  if (run_ == nullptr) return;
  past_timelines_.push_back(RecordTimeline(*run_, machine_.devices, 0));
  if (past_timelines_.size() > kTimelinesKept) past_timelines_.pop_front();
  ForgetRun();
}

void Coordinator::ForgetRun() {
  changes_.Forget();
  files_.reset();
  run_.reset();
}

void Coordinator::Prepare(const store::JobRecord& record) {
  const HostLimits limits = Limits();
  phase_ = Phase::kPreparing;
  devices_touched_ = true;
  auto prepared = std::make_shared<Prepared>(record);
  prepared->held = HoldsJob(*segment_, record);
  if (absl::Status status = LockOutput(record); !status.ok()) {
    prepared->status = status;
    return mailbox_->Post([this, prepared] { OnPrepared(prepared); });
  }
  Background([this, prepared, limits] {
    prepared->status = SetUp(limits, prepared.get());
    mailbox_->Post([this, prepared] { OnPrepared(prepared); });
  });
}

absl::Status Coordinator::SetUp(const HostLimits& limits, Prepared* prepared) {
  store::JobRecord& record = prepared->record;
  HARMONY_ASSIGN_OR_RETURN(prepared->setup, SetupOf(record, machine_));
  if (!PlannedFor(prepared->setup.plan, machine_)) {
    const absl::Status planned = PlanAnew(machine_, limits, &record);
    prepared->fits = planned.ok();
    HARMONY_RETURN_IF_ERROR(planned);
    HARMONY_ASSIGN_OR_RETURN(prepared->setup, SetupOf(record, machine_));
  }
  return PrepareRun(record, machine_, segment_, &prepared->setup);
}

void Coordinator::TakePlan(store::JobRecord& record, const store::JobRecord& planned) {
  if (record.plan == planned.plan) return;
  record.plan = planned.plan;
  record.plan_text = planned.plan_text;
  record.profile = planned.profile;
  record.replan = planned.replan;
  registry_.Report(record,
                   "the devices are others than before: planned anew, the result stays the same");
  registry_.Save(record);
}

// Of a job from before this process started.
absl::Status Coordinator::LockOutput(const store::JobRecord& record) {
  if (output_locks_.contains(record.number)) return absl::OkStatus();
  HARMONY_ASSIGN_OR_RETURN(OutputDirLock lock,
                           RetakeOutputDir(record.output_dir, record.result_keys));
  output_locks_.emplace(record.number, std::move(lock));
  return absl::OkStatus();
}

void Coordinator::OnPrepared(const std::shared_ptr<Prepared>& prepared) {
  store::JobRecord& record = *current();
  phase_ = Phase::kRunning;
  if (!prepared->fits && record.stop == store::StopIntent::kCancel) return EndUnbegun(record);
  if (!prepared->fits) {
    registry_.Report(record,
                     absl::StrCat("paused: the devices are others than before, and the job cannot "
                                  "be planned for them: ",
                                  prepared->status.message()));
    SetState(record, store::JobState::kPaused);
    return BeginRelease();
  }
  TakePlan(record, prepared->record);
  if (!prepared->status.ok()) return CannotBegin(record, prepared->status, prepared->held);
  const StartPoint& start = prepared->setup.start;
  for (const std::string& note : start.notes) registry_.Report(record, note);
  if (prepared->setup.continues) {
    registry_.Report(record, "continuing from what the segment holds");
  } else if (!start.checkpoint.empty()) {
    registry_.Report(record, absl::StrCat("resuming from ", start.checkpoint));
  }
  NothingAwaited();
  const bool stops = IsToStop(record);
  const Nanos begun = Now();
  run_ = std::make_unique<JobRun>(std::move(prepared->setup), machine_, segment_, &members_,
                                  &deadline_clock_, EventsOfRun());
  if (!run_->setup().continues) record.completed_steps = start.first_step;
  files_ = std::make_unique<OutputFiles>(run_.get(), &registry_, &members_, &MonotonicClock(),
                                         record.completed_steps, begun);
  changes_.Begin(run_.get(), &record);
  if (stops && !run_->setup().continues) return OnRunEnded(absl::OkStatus());
  if (absl::Status status = run_->Start(); !status.ok()) {
    return CannotBegin(record, status, prepared->held);
  }
  begin_tries_.Succeeded();
  OnRunStateChanged();                      // one that was put off waits no more
  files_->WritePlan(record).IgnoreError();  // OnTick tries again
  // Steps that only the segment holds go into a checkpoint first.
  if (terminated_) return StopRun(record);
  if (record.stop != store::StopIntent::kNone) run_->Stop();
}

void Coordinator::TryToBegin(store::JobRecord& record) {
  if (!IsToStop(record) || HoldsJob(*segment_, record)) return Prepare(record);
  EndUnbegun(record);
}

void Coordinator::EndUnbegun(store::JobRecord& record) {
  SettleStopped(record);
  BeginRelease();
}

void Coordinator::CannotBegin(store::JobRecord& record, const absl::Status& status, bool held) {
  if (!held) {
    if (IsToStop(record)) return EndUnbegun(record);
    if (runner::VerdictOf(status, runner::FailedAt::kBegin) != runner::Verdict::kWait) {
      Fail(record, status);
      return BeginRelease();
    }
    // Where it begins is chosen anew, by what is there then. No process knows of it yet.
    if (const absl::Status released = segment_->ReleaseJob(); !released.ok()) {
      spdlog::error("event=release_failed reason=\"{}\"", released.ToString());
    }
  }
  ForgetRun();
  output_locks_.erase(record.number);  // what is there now may not be what is there then
  phase_ = Phase::kPutOff;
  const Nanos pause = begin_tries_.Failed(Now());
  registry_.Report(
      record, absl::StrCat(status.message(), held ? runner::kWaitsAndKeeps : runner::kWaits, "; ",
                           runner::NextTryText(pause)));
  SetState(record, store::JobState::kWaiting);
  NotifyWatchers(Now());
}

RunEvents Coordinator::EventsOfRun() {
  RunEvents events;
  events.step_completed = [this](const StepMetrics& metrics) { OnStep(metrics); };
  events.report = [this](const std::string& text) { registry_.Report(*current(), text); };
  events.state_changed = [this] { OnRunStateChanged(); };
  events.drifts = [this] { changes_.OnDrift(); };
  events.change_judged = [this] { changes_.KeepState(); };
  // Posted: a run must not be taken down while one of its methods runs.
  events.ended = [this](const absl::Status& status) {
    mailbox_->Post([this, status] { OnRunEnded(status); });
  };
  return events;
}

void Coordinator::OnStep(const StepMetrics& metrics) {
  store::JobRecord& record = *current();
  files_->OnStep(record);
  record.completed_steps = metrics.step;
  record.last_loss = metrics.loss;
  const Nanos now = Now();
  if (now - last_saved_ > Seconds(1)) {
    last_saved_ = now;
    registry_.SaveProgress(record);
  }
  for (Watcher& watcher : watchers_) {
    if (watcher.job() == record.number) watcher.Hurry();
  }
  NotifyWatchers(now);
}

void Coordinator::OnRunStateChanged() {
  store::JobRecord& record = *current();
  if (run_->waiting()) return SetState(record, store::JobState::kWaiting);
  if (record.stop != store::StopIntent::kNone) {  // stopping, whatever else
    if (record.state == store::JobState::kWaiting) SetState(record, store::JobState::kStopping);
    return;
  }
  switch (run_->runner().state()) {
    case runner::JobRunner::State::kGathering:
      return SetState(record, store::JobState::kStarting);
    case runner::JobRunner::State::kQuiescing:
      if (record.state == store::JobState::kRunning || record.state == store::JobState::kWaiting) {
        SetState(record, store::JobState::kRecovering);
      }
      return;
    case runner::JobRunner::State::kRunning:
      return SetState(record, store::JobState::kRunning);
    case runner::JobRunner::State::kFinished:
    case runner::JobRunner::State::kFailed:
      return;
  }
}

void Coordinator::BeginRelease() {
  NotifyWatchers(Now());
  phase_ = Phase::kLettingGo;
  NothingAwaited();
  phase_since_ = deadline_clock_.Now();
  release_generation_ = segment_->generation() + 1;
  if (absl::Status status = segment_->RaiseGeneration(release_generation_); !status.ok()) {
    spdlog::error("event=raise_generation_failed reason=\"{}\"", status.ToString());
  }
  v1::ToProcess end, quiesce;
  end.mutable_job_end()->set_job_id(current()->id());
  quiesce.mutable_quiesce()->set_generation(release_generation_);
  members_.SendToAll(end);
  members_.SendToAll(quiesce);
  fence_.Close();
  TryRelease();
}

void Coordinator::TryRelease() {
  if (!fence_.IsQuiet()) return;
  if (finish_when_quiet_ && !FinishRecord(*current())) return NotifyWatchers(Now());
  finish_when_quiet_ = false;
  NotifyWatchers(Now());
  const std::vector<runner::ProcessId> unseen = fence_.Unseen();
  if (unseen.empty()) return Release();
  if (!terminated_) return ReportAwaited(*current(), unseen);
  OnReleased(absl::OkStatus());  // a successor finds what is left, and waits where we do not
}

void Coordinator::Release() {
  phase_ = Phase::kReleasing;
  Background([this] {
    const absl::Status status = segment_->ReleaseJob();
    mailbox_->Post([this, status] { OnReleased(status); });
  });
}

void Coordinator::OnReleased(const absl::Status& status) {
  if (!status.ok()) spdlog::error("event=release_failed reason=\"{}\"", status.ToString());
  phase_ = Phase::kIdle;
  if (terminated_) return terminated_();
  StartNext();
}

void Coordinator::Terminate(std::function<void()> done) {
  terminated_ = std::move(done);
  switch (phase_) {
    case Phase::kIdle:
      return terminated_();
    case Phase::kRunning:
      return StopRun(*current());
    case Phase::kPutOff:
      return begin_tries_.Hurry();  // it has to go on before it can write a checkpoint
    case Phase::kPreparing:
    case Phase::kLettingGo:
    case Phase::kReleasing:
      return;  // noticed at the end of the phase
  }
}

void Coordinator::StopRun(store::JobRecord& record) {
  if (record.stop == store::StopIntent::kNone || record.stop == store::StopIntent::kReplan) {
    record.stop = store::StopIntent::kShutdown;
  }
  SetState(record, store::JobState::kStopping);
  registry_.Report(record, "the coordinator was told to stop: finishing the step in flight");
  run_->Stop();
}

// ---- Time ----

void Coordinator::OnTick() {
  const Nanos now = Now(), lived = deadline_clock_.Now();
  registry_.SaveUnsaved(now);
  members_.OnTick();
  if (phase_ == Phase::kRunning) {
    run_->OnTick();
    files_->OnTick(*current(), now);
    ReportAwaited(*current(), run_->Awaited());
  } else if (phase_ == Phase::kLettingGo) {
    if (lived - phase_since_ > kLetGoDeadline) {
      phase_since_ = lived;
      fence_.KillHolders("did not end the job in time");
    }
    TryRelease();
  } else if (phase_ == Phase::kPutOff && begin_tries_.Due(now)) {
    TryToBegin(*current());
  } else if (phase_ == Phase::kIdle && !fence_.Unseen().empty()) {
    StartNext();
  }
  NotifyWatchers(now);
}

void Coordinator::NothingAwaited() {
  awaited_since_ = Now();
  awaited_pause_ = kAwaitedPause;
}

void Coordinator::ReportAwaited(const store::JobRecord& record,
                                const std::vector<runner::ProcessId>& awaited) {
  if (awaited.empty()) NothingAwaited();
  const Nanos now = Now();
  if (now - awaited_since_ < awaited_pause_) return;
  awaited_since_ = now;
  awaited_pause_ = std::min(awaited_pause_ * 2, kLongestAwaitedPause);
  registry_.Report(record, absl::StrCat("still waiting for ", DebugString(awaited)));
}

void Coordinator::NotifyWatchers(Nanos now) {
  for (Watcher& watcher : watchers_) {
    store::JobRecord& record = registry_.jobs().at(watcher.job());
    if (watcher.gone() || (!watcher.Due(now) && !store::IsEnded(record.state))) continue;
    const JobRun* run = current_ == record.number ? run_.get() : nullptr;
    watcher.Send(record, run, registry_.Messages(record), &members_, segment_->arena_size(), now);
  }
  watchers_.erase(std::remove_if(watchers_.begin(), watchers_.end(),
                                 [](const Watcher& watcher) { return watcher.gone(); }),
                  watchers_.end());
}

}  // namespace harmony::service
