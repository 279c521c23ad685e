#include "tests/sim/simulator/sim_coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/simulator/action_text.h"

namespace harmony::sim {
namespace {

using Kind = Happening::Kind;
using What = SimMessage::What;

// Far above what a command or a message takes here.
constexpr Nanos kDeadline(4'000'000);

int IndexOf(const runner::ProcessId& id) {
  return id.role == runner::Role::kWorker ? 2 + id.device : static_cast<int>(id.role);
}

}  // namespace

SimCoordinator::SimCoordinator(const model::ModelSpec& model, const plan::Plan& plan,
                               const dispatch::CostModel& costs, const SimOptions& options,
                               SimPost& post, SimWorld& world, SimLanes& lanes,
                               std::vector<SimProcess>& processes, SimResult& result)
    : model_(model),
      plan_(plan),
      costs_(costs),
      options_(options),
      post_(post),
      world_(world),
      lanes_(lanes),
      processes_(processes),
      result_(result) {}

void SimCoordinator::Start() {
  ++epoch_;
  runner::RunnerOptions options;
  options.dispatch = {options_.first_step, options_.end_step, options_.save_steps, options_.window};
  options.first_generation = word_ + 1;
  options.worker_copies = options_.worker_copies;
  options.max_generations_without_progress = 1000;
  options.command_deadline = options.quiesce_deadline = kDeadline;
  runner_ = std::make_unique<runner::JobRunner>(model_, plan_, costs_, options);
  members_.assign(processes_.size(), {});
  result_.recording.clear();
  result_.actions.clear();
  reported_ = -1;
  if (stop_requested_) Inform(runner::StopRequested{});
}

void SimCoordinator::Inform(const runner::Event& event) {
  if (options_.keep_recording) result_.recording.emplace_back(Now(), event);
  std::vector<runner::Action> actions = runner_->OnEvent(event, Now());
  if (options_.keep_recording) result_.actions.push_back(DebugString(actions));
  for (runner::Action& action : actions) {
    std::visit([this](auto& a) { Do(a); }, action);
  }
}

void SimCoordinator::StopRequested() {
  stop_requested_ = true;
  if (alive()) Inform(runner::StopRequested{});
}

// ---- Processes and their streams ----

void SimCoordinator::OnMessage(SimMessage message) {
  if (!alive() || message.epoch != epoch_) return;
  if (message.process < 0) return Inform(*message.event);
  Member& member = members_[message.process];
  if (message.what == What::kHello) {
    if (member.session != 0) {
      result_.seen.Note(Seen::kDialledBeforeLossWasSeen);
      Lose(message.process);
    }
    member = {message.session, message.incarnation, false};
    if (!options_.set_up) return Welcome(message.process);
    return SendTo(message.process, What::kJob, 0);
  }
  if (member.session != message.session) return;  // of a stream that is over
  switch (message.what) {
    case What::kJobReady:
      return Welcome(message.process);
    case What::kJobRefused:
      return post_.ScheduleIn(post_.Delay() * 8, Kind::kTellJob, message.process, message.session);
    case What::kClosed:
      return Lose(message.process);
    default:
      return Inform(*message.event);
  }
}

void SimCoordinator::TellJob(int process, uint64_t session) {
  if (alive() && members_[process].session == session) SendTo(process, What::kJob, 0);
}

void SimCoordinator::Welcome(int process) {
  members_[process].ready = true;
  Inform(runner::ProcessAttached{processes_[process].id, members_[process].incarnation});
}

// Its stream is gone: only its death makes sure that it writes nothing more.
void SimCoordinator::Lose(int process) {
  SendKill(process);
  const Member lost = std::exchange(members_[process], {});
  if (lost.ready) Inform(runner::ProcessLost{processes_[process].id, lost.incarnation});
}

void SimCoordinator::SendKill(int process) {
  post_.ScheduleIn(post_.Delay(), Kind::kKill, process, members_[process].incarnation);
}

// To nobody when it has no stream.
void SimCoordinator::SendTo(int process, What what, uint32_t generation,
                            std::vector<command::Command> commands) {
  if (members_[process].session == 0) return;
  SimMessage message;
  message.process = process;
  message.session = members_[process].session;
  message.what = what;
  message.generation = generation;
  message.commands = std::move(commands);
  post_.Send(processes_[process], true, std::move(message));
}

// ---- Actions ----

void SimCoordinator::Do(runner::RaiseGeneration& action) {
  word_ = std::max(word_, action.generation);
}

void SimCoordinator::Do(runner::AskQuiesce& action) {
  SendTo(IndexOf(action.process), What::kQuiesce, action.generation);
}

void SimCoordinator::Do(runner::KillProcess& action) {
  result_.seen.Note(Seen::kPastDeadline);
  SendKill(IndexOf(action.process));
}

void SimCoordinator::Do(runner::ReadRecords& action) {
  lanes_.PrepareBank(action.generation);
  world_.ForgetDevices();
  SimMessage message;
  message.epoch = epoch_;
  message.event = runner::RecordsRead{action.generation, world_.records()};
  post_.SendSelf(Nanos(1000), std::move(message));
}

void SimCoordinator::Do(runner::StartGeneration& action) {
  for (size_t p = 0; p < processes_.size(); ++p) {
    SendTo(static_cast<int>(p), What::kStart, action.generation);
  }
}

void SimCoordinator::Do(runner::Send& action) {
  SendTo(IndexOf(action.process), What::kCommands, action.generation, std::move(action.commands));
}

void SimCoordinator::Do(runner::StepCompleted& action) {
  if (reported_ >= 0 && action.step != reported_) {
    broken_.Update(
        absl::InternalError(absl::StrCat("step ", action.step, " reported after ", reported_)));
  }
  reported_ = action.step + 1;
  result_.step_ends.push_back(post_.now());
  const command::ObjectTableLayout table(model_, plan_.num_microbatches, plan_.replicas);
  const command::ObjectView& scalars = world_.records()[table.IndexOf(
      {command::ObjectKind::kStepScalars, static_cast<int32_t>(action.step & 1), 0})];
  if (scalars.state != command::ObjectState::kClean ||
      scalars.version != static_cast<uint64_t>(action.step) + 1) {
    broken_.Update(absl::InternalError(absl::StrCat("scalars of step ", action.step, " are gone")));
  }
}

void SimCoordinator::Do(runner::JobEnded& action) { ended_ = action.status; }

}  // namespace harmony::sim
