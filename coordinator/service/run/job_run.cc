#include "coordinator/service/run/job_run.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/job/job_file.h"
#include "common/rpc/command_codec.h"
#include "coordinator/dispatch/costs/profiled_costs.h"
#include "coordinator/service/replan/measured_scales.h"
#include "harmony/v1/attach.pb.h"

namespace harmony::service {
namespace {

// What traces show and what measured times are taken from: under 1 MiB a lane.
constexpr size_t kTimelineEntriesPerLane = 8192;
// Bytes that a driver pins a second; 3.3e9 were measured, with all of 16 cores.
constexpr double kSlowestPinning = 0.5e9;
// How long a job that is told to stop waits for processes that could write a checkpoint.
constexpr Nanos kStopWithoutAnyProcess = Seconds(2);
constexpr Nanos kStopWithoutAllProcesses = Seconds(10);
constexpr Nanos kStopWhileRecovering = Seconds(30);

runner::RunnerOptions OptionsOf(const RunSetup& setup, const plan::MachineSpec& machine,
                                const ipc::Segment& segment) {
  runner::RunnerOptions options;
  for (const plan::DeviceSpec& device : machine.devices) {
    if (device.worker_copies) options.worker_copies.insert(device.ordinal);
  }
  options.dispatch.first_step = setup.start.first_step;
  options.dispatch.end_step = setup.spec.max_steps;
  options.dispatch.save_steps = setup.spec.save_steps;
  options.first_generation = segment.generation() + 1;
  options.keeps_checkpoints = setup.spec.save_total_limit > 1;
  return options;
}

Nanos Now() { return MonotonicClock().Now(); }

}  // namespace

JobRun::JobRun(RunSetup setup, const plan::MachineSpec& machine, ipc::Segment* segment,
               Members* members, const Clock* deadline_clock, RunEvents events)
    : setup_(std::move(setup)),
      segment_(segment),
      members_(members),
      deadline_clock_(deadline_clock),
      events_(std::move(events)),
      table_(setup_.model, setup_.plan.num_microbatches, setup_.plan.replicas),
      costs_(dispatch::MakeCosts(setup_.profile.get(), setup_.replan.scales, setup_.model,
                                 setup_.plan, machine.devices)),
      pace_(setup_.model, setup_.plan, machine.devices),
      minimal_(plan::ComputeMinimalSwap(setup_.model, setup_.plan)),
      runner_(setup_.model, setup_.plan, *costs_, OptionsOf(setup_, machine, *segment)),
      monitor_(static_cast<int>(setup_.plan.devices.size()), kTimelineEntriesPerLane),
      steps_(setup_, segment, &monitor_, &MonotonicClock(), events_),
      workspace_peaks_(setup_.plan.devices.size(), 0),
      gathering_(deadline_clock->Now()),
      longest_pinning_(Nanos::FromSeconds(
          static_cast<double>(plan::ArenaLayout(setup_.model, setup_.plan).end().count()) /
          kSlowestPinning)) {
  for (const plan::DeviceSpec& device : machine.devices) device_names_.push_back(ToString(device));
}

JobRun::~JobRun() = default;

absl::Status JobRun::Start() {
  HARMONY_RETURN_IF_ERROR(steps_.Open());
  for (Member* member : members_->All()) {
    pacing_before_[member->session] = member->pacing;
    OnAttached(*member);
  }
  return absl::OkStatus();
}

void JobRun::SendSetup(const Member& member) {
  v1::ToProcess message;
  v1::JobSetup* job = message.mutable_job();
  job->set_job_id(setup_.id);
  job->set_job_json(job::JobSpecToJson(setup_.spec));
  job->set_model_config_json(setup_.config_json);
  job->set_plan(setup_.plan_bytes);
  job->set_resume_checkpoint(setup_.start.checkpoint);
  job->set_first_step(setup_.start.first_step);
  member.link->Send(std::move(message));
}

void JobRun::OnAttached(const Member& member) {
  if (ended_) return;
  const std::optional<int> deaths =
      gathering_.OnAttached(member.id, member.own_deaths, deadline_clock_->Now());
  if (deaths) {
    const absl::Status status = absl::InternalError(
        absl::StrCat(DebugString(member.id), " died ", *deaths,
                     " times while the job was being set up; its log says why"));
    if (HoldsSteps()) return SetUpLater(member, status);
    return End(stop_asked_ ? absl::OkStatus() : status);
  }
  SendSetup(member);
}

void JobRun::OnLost(const Member& member) {
  if (ended_) return;
  // Its stream is gone: only its death makes sure that it writes nothing more.
  member.handle.Kill();
  if (gathering_.OnLost(member.id, member.session, member.own_deaths)) {
    events_.report(
        absl::StrCat(DebugString(member.id), " (process ", member.handle.pid(), ") was lost"));
    Feed(runner::ProcessLost{member.id, member.incarnation});
  }
  if (!ended_) events_.state_changed();
}

void JobRun::OnMessage(const Member& member, const v1::FromProcess& message) {
  if (ended_) return;
  switch (message.message_case()) {
    case v1::FromProcess::kJobReady:
      if (message.job_ready().job_id() != setup_.id) return;
      return OnJobReady(member, message.job_ready().code(), message.job_ready().message());
    case v1::FromProcess::kQuiesced:
      return Feed(runner::Quiesced{member.id, member.incarnation, message.quiesced().generation()});
    case v1::FromProcess::kProgress:
      return OnLaneProgress(message.progress());
    case v1::FromProcess::kFailed: {
      const v1::CommandFailed& failed = message.failed();
      return Feed(runner::CommandFailed{
          failed.generation(), static_cast<int>(failed.lane()), failed.value(),
          absl::Status(static_cast<absl::StatusCode>(failed.code()), failed.message())});
    }
    default:
      spdlog::warn("event=unexpected_message process=\"{}\"", DebugString(member.id));
  }
}

void JobRun::OnStats(Member& member, const v1::FromProcess& message) {
  const v1::DeviceStats& stats = message.stats();
  if (member.id.role == runner::Role::kWorker) {
    int64_t& peak = workspace_peaks_[member.id.device];
    peak = std::max(peak, stats.workspace_peak());
  }
  member.pacing = {stats.paced(), stats.overruns()};
  member.gpus.assign(stats.gpus().begin(), stats.gpus().end());
  pacing_now_[member.session] = member.pacing;
}

Pacing JobRun::pacing() const {
  Pacing sum;
  for (const auto& [session, now] : pacing_now_) {
    const auto found = pacing_before_.find(session);
    const Pacing before = found == pacing_before_.end() ? Pacing{} : found->second;
    sum.paced += now.paced - before.paced;
    sum.overruns += now.overruns - before.overruns;
  }
  return sum;
}

void JobRun::OnJobReady(const Member& member, int code, const std::string& message) {
  if (code != 0) {
    const absl::Status status(static_cast<absl::StatusCode>(code),
                              absl::StrCat(DebugString(member.id), ": ", message));
    const runner::FailedAt at = HoldsSteps()                  ? runner::FailedAt::kTraining
                                : setup_.start.first_step > 0 ? runner::FailedAt::kBegin
                                                              : runner::FailedAt::kStart;
    if (runner::VerdictOf(status, at) != runner::Verdict::kWait) return End(status);
    return SetUpLater(member, status);
  }
  if (gathering_.OnReady(member.id, member.session)) events_.state_changed();
  Feed(runner::ProcessAttached{member.id, member.incarnation, member.own_deaths});
}

void JobRun::SetUpLater(const Member& member, const absl::Status& status) {
  const Nanos pause = gathering_.OnRefused(member.id, deadline_clock_->Now());
  events_.report(absl::StrCat(status.message(),
                              HoldsSteps() ? runner::kWaitsAndKeeps : runner::kWaits, "; ",
                              runner::NextTryText(pause)));
  events_.state_changed();
}

void JobRun::OnLaneProgress(const v1::LaneProgress& progress) {
  if (progress.generation() != runner_.generation() ||
      static_cast<int>(progress.lane()) >= monitor_.num_lanes()) {
    return;
  }
  std::vector<ReportedTiming> timings;
  timings.reserve(progress.timings_size());
  for (const v1::CommandTiming& timing : progress.timings()) {
    timings.push_back({timing.value(), Nanos(timing.received_ns()), Nanos(timing.start_ns()),
                       Nanos(timing.end_ns())});
  }
  const int lane = static_cast<int>(progress.lane());
  monitor_.OnProgress(lane, progress.value(), timings, Now());
  Feed(runner::LaneProgress{progress.generation(), lane, progress.value()});
}

void JobRun::OnTick() {
  if (ended_) return;
  steps_.OnTick();
  if (outcome_) {
    if (steps_.complete()) Close(*outcome_);
    return;
  }
  Feed(runner::Tick{});
  const Nanos now = deadline_clock_->Now();
  for (const runner::ProcessId& id : gathering_.TakeDue(now)) {
    if (const Member* const member = members_->Find(id)) SendSetup(*member);
  }
  if (!ended_) WatchForMissing(now);
}

// Only processes that have attached are missed by the runner.
void JobRun::WatchForMissing(Nanos now) {
  const std::vector<runner::ProcessId> awaited = Awaited();
  const Nanos since = gathering_.Since(awaited, now);
  // There is nothing to write, and one that refuses the job may do so for long.
  if (stop_asked_ && !HoldsSteps() && gathering_.refused()) return End(absl::OkStatus());
  // Nobody is there to write a checkpoint: the last one has to do. Who is still taking the job up
  // is waited for where there is something to write.
  const bool absent = absl::c_any_of(awaited, [&](const runner::ProcessId& id) {
    return !HoldsSteps() || members_->Find(id) == nullptr;
  });
  if (!absent) all_there_ = now;
  if (stop_asked_ && now - std::max({*stop_asked_, since, all_there_}) > PatienceOfStop()) {
    return End(absl::OkStatus());
  }
  // One that is there may be pinning the arena.
  const auto missed = absl::c_find_if(
      awaited, [&](const runner::ProcessId& id) { return members_->Find(id) == nullptr; });
  const bool there = missed == awaited.end();
  const Nanos deadline = Gathering::kDeadline + (there ? longest_pinning_ : Nanos());
  const bool late = now - since > deadline;
  if (late == misses_process_) return;
  if (late) {
    const std::string missing =
        absl::StrCat(DebugString(there ? awaited.front() : *missed),
                     there ? " has not taken the job up in " : " has not been there for ",
                     FormatDuration(deadline), "; its log says why");
    if (!HoldsSteps()) return End(absl::DeadlineExceededError(missing));
    events_.report(absl::StrCat(missing, runner::kWaitsAndKeeps));
  }
  misses_process_ = late;
  events_.state_changed();
}

bool JobRun::HoldsSteps() const { return setup_.continues || generations_ > 0; }

Nanos JobRun::PatienceOfStop() const {
  if (HoldsSteps()) return kStopWhileRecovering;
  return members_->All().empty() ? kStopWithoutAnyProcess : kStopWithoutAllProcesses;
}

void JobRun::Stop() {
  if (ended_ || stop_asked_) return;
  stop_asked_ = deadline_clock_->Now();
  gathering_.Hurry();
  Feed(runner::StopRequested{});
}

void JobRun::TryNow() {
  if (ended_) return;
  gathering_.Hurry();
  steps_.Hurry();
  Feed(harmony::runner::TryNow{});
}

void JobRun::FinishStep() {
  if (!ended_) Feed(runner::StopRequested{});
}

void JobRun::OnSearched(const std::optional<Forecast>& now, const dispatch::CostScales& scales,
                        const std::optional<Suggestion>& suggestion) {
  steps_.OnSearched(completed_steps(), now, scales, suggestion);
}

dispatch::CostScales JobRun::MeasuredScales() const {
  const int64_t end = completed_steps();
  return ScalesOf(monitor_, setup_.plan, costs_->Cores(),
                  end - static_cast<int64_t>(DriftMonitor::kSteps), end);
}

bool JobRun::HeadIsRunning(int lane) const {
  if (monitor_.Head(lane) == nullptr || runner_.state() != runner::JobRunner::State::kRunning)
    return false;
  const std::vector<command::SemaphoreWait>& waits = monitor_.HeadWaits(lane);
  return std::all_of(waits.begin(), waits.end(), [&](const command::SemaphoreWait& wait) {
    return segment_->Semaphore(runner_.generation(), wait.semaphore).value() >= wait.value;
  });
}

int64_t JobRun::completed_steps() const {
  return std::max(
      {steps_.written_steps(), runner_.dispatcher().completed_steps(), setup_.start.first_step});
}

Bytes JobRun::PeakBytes(int device) const {
  return runner_.dispatcher().PeakBytes(device) + Bytes(workspace_peaks_[device]);
}

RunReadings JobRun::Readings() const {
  RunReadings readings;
  readings.completed_steps = completed_steps();
  readings.generation = runner_.generation();
  for (size_t d = 0; d < workspace_peaks_.size(); ++d) {
    readings.peak_bytes.push_back(PeakBytes(static_cast<int>(d)).count());
  }
  if (const Member* swapper = members_->Find({runner::Role::kSwapper, 0})) {
    readings.gpus = swapper->gpus;
  }
  return readings;
}

std::vector<runner::ProcessId> JobRun::Awaited() const {
  return gathering_.Awaited(members_->Required());
}

// ---- Actions ----

void JobRun::Feed(const runner::Event& event) {
  const runner::JobRunner::State before = runner_.state();
  for (const runner::Action& action : runner_.OnEvent(event, deadline_clock_->Now())) {
    if (ended_) return;
    Carry(action);
  }
  if (!ended_ && runner_.state() != before) events_.state_changed();
}

void JobRun::Carry(const runner::Action& action) {
  if (const auto* raise = std::get_if<runner::RaiseGeneration>(&action)) {
    if (absl::Status status = segment_->RaiseGeneration(raise->generation); !status.ok()) {
      End(status);
    }
  } else if (const auto* ask = std::get_if<runner::AskQuiesce>(&action)) {
    if (Member* member = members_->Find(ask->process)) {
      v1::ToProcess message;
      message.mutable_quiesce()->set_generation(ask->generation);
      member->link->Send(std::move(message));
    }
  } else if (const auto* kill = std::get_if<runner::KillProcess>(&action)) {
    if (Member* member = members_->Find(kill->process)) member->handle.Kill();
  } else if (const auto* read = std::get_if<runner::ReadRecords>(&action)) {
    CarryReadRecords(read->generation);
  } else if (const auto* start = std::get_if<runner::StartGeneration>(&action)) {
    monitor_.BeginGeneration(start->generation, Now());
    ++generations_;
    steps_.BeginGeneration();
    v1::ToProcess message;
    message.mutable_start()->set_generation(start->generation);
    members_->SendToAll(message);
  } else if (const auto* send = std::get_if<runner::Send>(&action)) {
    CarrySend(*send);
  } else if (const auto* step = std::get_if<runner::StepCompleted>(&action)) {
    steps_.OnCompleted(step->step + 1, Readings());
  } else if (const auto* report = std::get_if<runner::Report>(&action)) {
    events_.report(report->text);
  } else if (const auto* end = std::get_if<runner::JobEnded>(&action)) {
    End(end->status);
  }
}

void JobRun::CarrySend(const runner::Send& send) {
  const Nanos now = Now();
  v1::ToProcess message;
  v1::Commands* commands = message.mutable_commands();
  commands->set_generation(send.generation);
  for (const command::Command& command : send.commands) {
    v1::Command* const wire = commands->add_commands();
    rpc::EncodeCommand(command, wire);
    // Paced devices keep the pace that they were given, whatever was measured.
    wire->set_expected_ns(pace_.Duration(command).count());
    monitor_.OnIssued(command, costs_->base().Duration(command), now);
  }
  if (Member* member = members_->Find(send.process)) member->link->Send(std::move(message));
}

void JobRun::CarryReadRecords(uint32_t generation) {
  absl::Status status = segment_->BeginGeneration(generation);
  absl::StatusOr<std::vector<command::ObjectView>> records = segment_->ReadRecords(table_.size());
  if (status.ok()) status = records.status();
  if (!status.ok()) return End(status);
  Feed(runner::RecordsRead{generation, *std::move(records)});
}

void JobRun::End(const absl::Status& status) {
  if (ended_ || outcome_) return;
  steps_.Finish();
  if (status.ok() && !steps_.complete()) {
    outcome_ = status;
    return events_.state_changed();
  }
  Close(status);
}

void JobRun::Close(const absl::Status& status) {
  if (ended_) return;
  ended_ = true;
  steps_.Close();
  events_.ended(status);
}

}  // namespace harmony::service
