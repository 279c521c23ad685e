#include "coordinator/runner/job_runner.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/command/lane_kinds.h"
#include "coordinator/runner/failure.h"
#include "coordinator/runner/run_progress.h"

namespace harmony::runner {
namespace {

// A disk, or a network's, below which something is taken to be broken; bytes a second.
constexpr double kSlowestDisk = 20e6;
// Parameters and two moments, in fp32: written, read back by who has written them and again for the
// manifest; with the last checkpoint goes final/, which is no more than a fourth time.
constexpr double kCheckpointBytesPerParameter = 12 * 4;

}  // namespace

class JobRunner::Impl {
 public:
  Impl(const model::ModelSpec& model, const plan::Plan& plan, const dispatch::CostModel& costs,
       const RunnerOptions& options)
      : options_(options),
        dispatcher_(model, plan, costs, options.dispatch),
        table_(model, plan.num_microbatches, plan.replicas),
        lanes_(static_cast<int>(plan.devices.size())),
        completed_(lanes_.size(), 0),
        heads_(lanes_.size()),
        generation_(options.first_generation - 1),
        disk_limit_(Nanos::FromSeconds(static_cast<double>(model.parameter_count()) *
                                       kCheckpointBytesPerParameter / kSlowestDisk)),
        reported_(options.dispatch.first_step) {
    members_.push_back({{Role::kSwapper, 0}});
    members_.push_back({{Role::kHostWorker, 0}});
    for (int d = 0; d < lanes_.num_devices(); ++d) members_.push_back({{Role::kWorker, d}});
  }

  std::vector<Action> OnEvent(const Event& event, Nanos now) {
    now_ = now;
    actions_.clear();
    if (state_ != State::kFinished && state_ != State::kFailed) {
      std::visit([this](const auto& e) { On(e); }, event);
    }
    return std::exchange(actions_, {});
  }

  State state_ = State::kGathering;
  bool waiting_ = false;
  RunnerOptions options_;
  dispatch::Dispatcher dispatcher_;

 private:
  struct Member {
    ProcessId process;
    bool attached = false, quiet = false;
    bool killed = false;  // by us, at a deadline
    bool blamed = false;  // for the generation that its loss ended, if it died by itself
    uint32_t incarnation = 0, own_deaths = 0;
  };
  // The first uncompleted command of a lane, for deadlines.
  struct HeadWatch {
    uint64_t value = 0;
    bool waits_satisfied = false;
    Nanos since;
  };

  Member* Find(const ProcessId& process) {
    for (Member& member : members_) {
      if (member.process == process) return &member;
    }
    return nullptr;
  }
  ProcessId OwnerOfLane(int lane) const {
    return OwnerOf(lanes_.LaneAt(lane), options_.worker_copies);
  }
  bool AllReady() const {
    return std::all_of(members_.begin(), members_.end(),
                       [](const Member& m) { return m.attached && m.quiet; });
  }

  void On(const ProcessAttached& event) {
    Member* member = Find(event.process);
    if (member == nullptr) return;
    const bool replaces = member->attached;
    const bool to_blame =
        member->blamed && (member->killed || event.own_deaths > member->own_deaths);
    // Fresh, or quiesced by itself when its stream broke: it runs nothing of any generation.
    *member = {.process = event.process,
               .attached = true,
               .quiet = true,
               .incarnation = event.incarnation,
               .own_deaths = event.own_deaths};
    if (to_blame && EndsTooMany(event.process)) {
      return GiveUp(absl::InternalError(absl::StrCat(
          DebugString(event.process), " was lost ", fruitless_[event.process],
          " times without any progress between; its log says why, or the launcher's")));
    }
    if (state_ == State::kRunning || (state_ == State::kQuiescing && replaces)) {
      NextGeneration(absl::StrCat(DebugString(event.process), " is back"));
    } else if (state_ == State::kGathering &&
               std::all_of(members_.begin(), members_.end(),
                           [](const Member& m) { return m.attached; })) {
      const int devices = lanes_.num_devices();
      NextGeneration(
          absl::StrCat(devices, devices == 1 ? " device is ready" : " devices are ready"));
    }
    MaybeReadRecords();
  }

  void On(const ProcessLost& event) {
    Member* member = Find(event.process);
    if (member == nullptr || !member->attached || member->incarnation != event.incarnation) return;
    member->attached = member->quiet = false;
    // Who takes its place knows whether it died by itself.
    member->blamed = state_ == State::kRunning;
    if (state_ != State::kGathering) {
      NextGeneration(absl::StrCat(DebugString(event.process),
                                  " is lost: the step goes on from what is committed"));
    }
  }

  // Counts a generation that the process has brought to its end.
  bool EndsTooMany(const ProcessId& process) {
    return ++fruitless_[process] > options_.max_generations_without_progress;
  }

  // (1) raise the word, (2) the service kills what is lost, (3) survivors quiesce.
  void NextGeneration(const std::string& reason) {
    ++generation_;
    state_ = State::kQuiescing;
    quiesce_since_ = now_;
    actions_.push_back(RaiseGeneration{generation_});
    actions_.push_back(Report{reason});
    for (Member& member : members_) {
      if (!member.attached) continue;
      if (member.quiet) continue;  // attached anew
      actions_.push_back(AskQuiesce{member.process, generation_});
    }
  }

  void On(const Quiesced& event) {
    Member* member = Find(event.process);
    if (state_ != State::kQuiescing || member == nullptr || !member->attached) return;
    if (member->incarnation != event.incarnation || event.generation != generation_) return;
    member->quiet = true;
    MaybeReadRecords();
  }

  void MaybeReadRecords() {
    if (state_ != State::kQuiescing || !AllReady() || asked_ == generation_) return;
    if (waiting_ && !missing_.Due(now_)) return;
    asked_ = generation_;
    actions_.push_back(ReadRecords{generation_});
  }

  // (4) all have answered: the new generation begins.
  void On(const RecordsRead& event) {
    if (state_ != State::kQuiescing || event.generation != generation_ || !AllReady()) return;
    if (absl::Status status = dispatcher_.BeginGeneration(generation_, event.records);
        !status.ok()) {
      End(status);
      return;
    }
    const Progress progress = ProgressOf(table_, event.records);
    if (progress > best_progress_) {
      fruitless_.clear();
      if (missing_.failing() && !missing_task_) missing_.Succeeded();
    }
    best_progress_ = std::max(best_progress_, progress);
    std::fill(completed_.begin(), completed_.end(), 0);
    heads_.assign(heads_.size(), {});
    for (Member& member : members_) member.quiet = false;
    state_ = State::kRunning;
    waiting_ = false;
    // A coordinator that starts again does not know how far its predecessor reported: what is still
    // there is reported once more. A step's scalars are overwritten only by commands that were sent
    // after its report.
    const int64_t completed = dispatcher_.completed_steps();
    int64_t readable = completed;
    while (readable > reported_ && readable > completed - 2 &&
           HoldsScalars(event.records, readable - 1)) {
      --readable;
    }
    reported_ = std::max(reported_, readable);
    actions_.push_back(StartGeneration{generation_});
    Advance();
  }

  bool HoldsScalars(const std::vector<command::ObjectView>& records, int64_t step) const {
    const int index =
        table_.IndexOf({command::ObjectKind::kStepScalars, static_cast<int32_t>(step & 1), 0});
    return index < static_cast<int>(records.size()) &&
           records[index].state == command::ObjectState::kClean &&
           static_cast<int64_t>(records[index].version) == step + 1;
  }

  void On(const LaneProgress& event) {
    if (state_ != State::kRunning || event.generation != generation_) return;
    if (event.lane < 0 || event.lane >= lanes_.size() || event.value <= completed_[event.lane]) {
      return;
    }
    if (missing_.failing() || saves_.failing()) NoteWhatWorks(event);
    completed_[event.lane] = event.value;
    dispatcher_.OnLaneProgress(event.lane, event.value);
    Advance();
  }

  void Advance() {
    for (; reported_ < dispatcher_.completed_steps(); ++reported_) {
      if (reported_ >= 0) actions_.push_back(StepCompleted{reported_});
    }
    absl::StatusOr<std::vector<command::Command>> commands = dispatcher_.NextCommands();
    if (!commands.ok()) {
      End(commands.status());
      return;
    }
    std::vector<Send> sends(members_.size());
    for (command::Command& command : *commands) {
      const ProcessId owner = OwnerOfLane(static_cast<int>(command.header.lane));
      const size_t at = owner.role == Role::kWorker ? 2 + static_cast<size_t>(owner.device)
                                                    : static_cast<size_t>(owner.role);
      sends[at].commands.push_back(std::move(command));
    }
    for (size_t i = 0; i < sends.size(); ++i) {
      if (sends[i].commands.empty()) continue;
      sends[i].process = members_[i].process;
      sends[i].generation = generation_;
      actions_.push_back(std::move(sends[i]));
    }
    if (dispatcher_.done()) End(failure_);
  }

  void On(const CommandFailed& event) {
    if (state_ != State::kRunning || event.generation != generation_) return;
    if (event.lane < 0 || event.lane >= lanes_.size()) return;
    const command::Lane lane = lanes_.LaneAt(event.lane);
    const ProcessId owner = OwnerOfLane(event.lane);
    const command::Command* command = dispatcher_.Find(event.lane, event.value);
    const command::HostTask* task =
        command == nullptr ? nullptr : std::get_if<command::HostTask>(&command->body);
    FailedAt at = FailedAt::kArithmetic;
    if (task != nullptr && lane.kind == command::LaneKind::kHostIo) {
      const FailedAt start = options_.dispatch.first_step > 0 ? FailedAt::kBegin : FailedAt::kStart;
      at = task->kind == command::HostTaskKind::kInitialize   ? start
           : task->kind == command::HostTaskKind::kCheckpoint ? FailedAt::kSaving
                                                              : FailedAt::kTraining;
    }
    switch (VerdictOf(event.status, at)) {
      case Verdict::kTryAgain:
        if (EndsTooMany(owner)) return GiveUp(event.status);
        return NextGeneration(absl::StrCat(DebugString(owner), ": ", event.status.message()));
      case Verdict::kWait:
        return GoOnWithout(task->kind, command->header.step, event.status);
      case Verdict::kEnd:
        // Memory may be there another time.
        return absl::IsResourceExhausted(event.status) ? GiveUp(event.status) : Fail(event.status);
    }
  }

  // The task lacked something outside the job, and is tried again later. The job goes on meanwhile,
  // where it can.
  void GoOnWithout(command::HostTaskKind kind, int64_t step, const absl::Status& status) {
    if (kind == command::HostTaskKind::kCheckpoint && dispatcher_.PutOffCheckpoint(step)) {
      const Nanos pause = saves_.Failed(now_);
      return NextGeneration(absl::StrCat(status.message(),
                                         ": training goes on without this checkpoint; the next "
                                         "one is tried in ",
                                         FormatDuration(pause)));
    }
    missing_task_ = kind;
    Wait(status);
  }

  // Of what another try does not mend by itself: the job ends where that loses nothing. Else it
  // waits, also where it is to stop (a second cancel abandons it): what it has trained since its
  // last checkpoint is in the segment only, and the reason may be mended.
  void GiveUp(const absl::Status& status) {
    if (!HoldsSteps()) return End(stopping_ ? absl::OkStatus() : status);
    missing_task_.reset();
    Wait(status);
  }

  // Of what happens again: the job ends, once what it has trained is saved. That needs the host
  // only, unless the step that failed has updated something: then there is nothing that can be
  // saved.
  void Fail(const absl::Status& status) {
    if (!failure_.ok()) {
      actions_.push_back(Report{kEndsWithoutSaving});
      return End(failure_);
    }
    if (!HoldsSteps()) return End(status);
    const dispatch::DispatchOptions& plan = options_.dispatch;
    const bool none_yet = plan.first_step == 0 &&
                          (plan.save_steps == 0 || dispatcher_.completed_steps() < plan.save_steps);
    if (!options_.keeps_checkpoints && !none_yet) {
      actions_.push_back(Report{kEndsWithOneCheckpoint});
      return End(status);
    }
    failure_ = status;
    dispatcher_.StopAfterCurrentStep();
    NextGeneration(absl::StrCat(status.message(), kEndsAndKeeps));
  }

  // Steps that it has trained itself.
  bool HoldsSteps() const { return dispatcher_.completed_steps() > options_.dispatch.first_step; }

  void Wait(const absl::Status& status) {
    waiting_ = true;
    const Nanos pause = missing_.Failed(now_);
    NextGeneration(absl::StrCat(status.message(), HoldsSteps() ? kWaitsAndKeeps : kWaits, "; ",
                                NextTryText(pause)));
  }

  void NoteWhatWorks(const LaneProgress& event) {
    for (uint64_t value = completed_[event.lane] + 1; value <= event.value; ++value) {
      const command::Command* command = dispatcher_.Find(event.lane, value);
      const command::HostTask* task =
          command == nullptr ? nullptr : std::get_if<command::HostTask>(&command->body);
      if (task == nullptr) continue;
      if (saves_.failing() && task->kind == command::HostTaskKind::kCheckpoint) {
        saves_.Succeeded();
        actions_.push_back(
            Report{absl::StrCat("checkpoint-", command->header.step + 1, " is written")});
      }
      if (missing_.failing() && task->kind == missing_task_) {
        missing_.Succeeded();
        actions_.push_back(Report{"what the job waited for is there: it goes on"});
      }
    }
  }

  void On(const TryNow&) {
    missing_.Hurry();
    saves_.Hurry();
    On(Tick{});
  }

  void On(const Tick&) {
    if (state_ == State::kQuiescing) {
      MaybeReadRecords();
      for (Member& member : members_) {
        if (!member.attached || member.quiet) continue;
        const Nanos limit = options_.quiesce_deadline + LongestHead(member.process) * 10;
        if (now_ - quiesce_since_ > limit) Kill(member, "did not quiesce in time");
      }
    }
    if (state_ != State::kRunning) return;
    if (saves_.Due(now_)) {
      dispatcher_.SaveNext();
      Advance();
    }
    for (int lane = 0; state_ == State::kRunning && lane < lanes_.size(); ++lane)
      CheckDeadline(lane);
  }

  // Modelled duration of the longest command that the process may be running.
  Nanos LongestHead(const ProcessId& process) const {
    Nanos longest;
    for (int lane = 0; lane < lanes_.size(); ++lane) {
      if (OwnerOfLane(lane) != process) continue;
      const command::Command* head = dispatcher_.Find(lane, completed_[lane] + 1);
      if (head != nullptr) longest = std::max(longest, head->header.expected);
    }
    return longest;
  }

  Nanos LimitOf(const command::Command& command) const {
    Nanos limit = options_.command_deadline + command.header.expected * 10;
    const auto* host = std::get_if<command::HostTask>(&command.body);
    if (host != nullptr && (host->kind == command::HostTaskKind::kInitialize ||
                            host->kind == command::HostTaskKind::kCheckpoint)) {
      limit += disk_limit_;
    }
    return limit;
  }

  // Commands name records by number only.
  std::string TensorsRead(const command::Command& command) const {
    std::string text;
    const auto name = [&](int record) {
      absl::StrAppend(&text, " reads ", DebugString(table_.KeyOf(record)));
    };
    if (const auto* transfer = std::get_if<command::Transfer>(&command.body); transfer != nullptr) {
      if (transfer->expect) name(transfer->expect->record);
    } else if (const auto* host = std::get_if<command::HostTask>(&command.body); host != nullptr) {
      for (int record : host->gradient_records) name(record);
    }
    return text;
  }

  void CheckDeadline(int lane) {
    HeadWatch& head = heads_[lane];
    const uint64_t value = completed_[lane] + 1;
    const command::Command* command = dispatcher_.Find(lane, value);
    if (command == nullptr) {
      head = {};
      return;
    }
    const bool satisfied = absl::c_all_of(
        command::AllWaits(*command),
        [this](const command::SemaphoreWait& w) { return completed_[w.semaphore] >= w.value; });
    if (head.value != value || head.waits_satisfied != satisfied) {
      head = {value, satisfied, now_};
      return;
    }
    if (!satisfied || now_ - head.since <= LimitOf(*command)) return;
    const command::Lane where = lanes_.LaneAt(lane);
    Kill(*Find(OwnerOfLane(lane)),
         absl::StrCat("deadline passed on ", DebugString(where), " (semaphore ", lane, ", value ",
                      value, "): ", DebugString(*command), TensorsRead(*command)));
  }

  void Kill(Member& member, const std::string& reason) {
    if (member.killed) return;
    member.killed = true;
    actions_.push_back(Report{absl::StrCat(DebugString(member.process), ": ", reason)});
    actions_.push_back(KillProcess{member.process, reason});
  }

  void On(const StopRequested&) {
    stopping_ = true;
    dispatcher_.StopAfterCurrentStep();
    if (state_ == State::kRunning) return Advance();
    // It may be for the sake of what is missing that the job is to stop.
    missing_.Hurry();
    MaybeReadRecords();
  }

  void End(absl::Status status) {
    state_ = status.ok() ? State::kFinished : State::kFailed;
    actions_.push_back(JobEnded{std::move(status)});
  }

  command::ObjectTableLayout table_;
  command::LaneTable lanes_;
  std::vector<uint64_t> completed_;
  std::vector<HeadWatch> heads_;
  std::vector<Member> members_;

 public:
  uint32_t generation_;

 private:
  const Nanos disk_limit_;
  int64_t reported_;  // steps below have been reported by StepCompleted
  Nanos now_, quiesce_since_;
  std::vector<Action> actions_;
  std::map<ProcessId, int> fruitless_;  // generations ended by each since there was progress
  Progress best_progress_ = {-1, -1, -1};
  uint32_t asked_ = 0;  // the generation that the records were asked for
  BackOff missing_;     // what the job waits for
  std::optional<command::HostTaskKind> missing_task_;  // nothing: processes that live
  bool stopping_ = false;
  absl::Status failure_;  // that the job ends with
  BackOff saves_;         // checkpoints that the job went on without
};

JobRunner::JobRunner(const model::ModelSpec& model, const plan::Plan& plan,
                     const dispatch::CostModel& costs, const RunnerOptions& options)
    : impl_(std::make_unique<Impl>(model, plan, costs, options)) {}
JobRunner::~JobRunner() = default;

std::vector<Action> JobRunner::OnEvent(const Event& event, Nanos now) {
  return impl_->OnEvent(event, now);
}
JobRunner::State JobRunner::state() const { return impl_->state_; }
bool JobRunner::waiting() const { return impl_->waiting_; }
uint32_t JobRunner::generation() const { return impl_->generation_; }
const dispatch::Dispatcher& JobRunner::dispatcher() const { return impl_->dispatcher_; }

}  // namespace harmony::runner
