#include "coordinator/sim/simulation.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/command/lane_queue.h"
#include "coordinator/runner/action_text.h"
#include "coordinator/sim/event_queue.h"
#include "coordinator/sim/faults.h"
#include "coordinator/sim/sim_process.h"
#include "coordinator/sim/sim_world.h"

namespace harmony::sim {
namespace {

constexpr int64_t kMaxEvents = 5'000'000;
constexpr Nanos kTickPeriod(500'000);
// Far above what a command or a message takes here.
constexpr Nanos kDeadline(4'000'000);

class Simulation {
 public:
  Simulation(const model::ModelSpec& model, const plan::Plan& plan,
             const dispatch::CostModel& costs, const SimOptions& options)
      : model_(model),
        plan_(plan),
        costs_(costs),
        options_(options),
        random_(options.seed, 1),
        lanes_(static_cast<int>(plan.devices.size())),
        world_(model, plan, options.first_step),
        processes_(2 + plan.devices.size()),
        semaphores_(lanes_.size(), 0),
        stamps_(lanes_.size(), 0),
        resources_(plan::ResourcesOfLanes(plan, costs.Cores())),
        kill_at_(options.kills, options.fault_events, random_),
        hang_at_(options.hangs, options.fault_events, random_),
        refuse_at_(options.refusals, options.fault_events, random_),
        reported_(options.first_step) {
    processes_[0].id = {runner::Role::kSwapper, 0};
    processes_[1].id = {runner::Role::kHostWorker, 0};
    for (size_t d = 0; d < plan.devices.size(); ++d) {
      processes_[2 + d].id = {runner::Role::kWorker, static_cast<int>(d)};
    }
    for (int lane = 0; lane < lanes_.size(); ++lane) {
      queues_.emplace_back(lane);
      const runner::ProcessId owner = runner::OwnerOf(lanes_.LaneAt(lane));
      owner_.push_back(IndexOf(owner));
      processes_[owner_.back()].lanes.push_back(lane);
    }
  }

  SimResult Run() {
    StartCoordinator();
    for (size_t p = 0; p < processes_.size(); ++p) Dial(static_cast<int>(p));
    if (options_.hangs + options_.refusals > 0) Schedule(kTickPeriod, Kind::kTick, 0);
    while (status_.ok() && !ended_ && !events_.empty() && result_.events < kMaxEvents) OneEvent();
    if (status_.ok() && !ended_) {
      status_ = absl::InternalError(
          absl::StrCat("the job hangs after event ", result_.events, ", generation ", word_));
    }
    if (status_.ok() && ended_->ok()) {
      status_ = world_.CheckFinal(runner_->dispatcher().completed_steps());
    } else if (status_.ok()) {
      status_ = *ended_;
    }
    if (!status_.ok()) {
      status_ = WithContext(status_, absl::StrCat("event ", result_.events, " generation ", word_));
    }
    result_.status = status_;
    result_.finished = now_;
    result_.generations = word_;
    if (runner_ != nullptr) {
      result_.completed_steps = runner_->dispatcher().completed_steps();
      for (int d = 0; d < lanes_.num_devices(); ++d) {
        result_.peak_resident.push_back(runner_->dispatcher().PeakBytes(d));
      }
    }
    result_.moved_bytes = world_.moved_bytes();
    return std::move(result_);
  }

 private:
  enum class Kind : uint8_t {
    kToCoordinator,  // a: message
    kToProcess,      // a: message
    kLaneDone,       // a: lane, b: stamp
    kRespawn,        // a: process
    kNotice,         // a: process; its stream to the coordinator broke; b: epoch
    kRestart,        // the coordinator
    kTick,
    kTryNow,  // what was missing is there, and somebody says so
  };
  struct Happening {
    Kind kind;
    int64_t a;
    uint64_t b;
  };
  using Message = SimMessage;
  using Process = SimProcess;

  int IndexOf(const runner::ProcessId& id) const {
    return id.role == runner::Role::kWorker ? 2 + id.device : static_cast<int>(id.role);
  }

  Nanos Delay() {
    if (!options_.jitter) return Nanos(1000);
    return Nanos(static_cast<int64_t>(random_.Below(options_.message_delay.count()) + 1));
  }

  void Schedule(Nanos at, Kind kind, int64_t a, uint64_t b = 0) { events_.Add(at, {kind, a, b}); }

  void Tell(int process, runner::Event event) {  // to the coordinator
    Process& from = processes_[process];
    from.last_up = std::max(now_ + Delay(), from.last_up + Nanos(1));
    Message message;
    message.process = process;
    message.incarnation = from.incarnation;
    message.epoch = from.epoch;
    message.event = std::move(event);
    Schedule(from.last_up, Kind::kToCoordinator, messages_.Keep(std::move(message)));
  }

  void SendTo(int process, Message message) {
    Process& to = processes_[process];
    to.last_down = std::max(now_ + Delay(), to.last_down + Nanos(1));
    message.process = process;
    message.incarnation = to.attached_incarnation;
    message.epoch = epoch_;
    Schedule(to.last_down, Kind::kToProcess, messages_.Keep(std::move(message)));
  }

  // ---- The coordinator ----

  void StartCoordinator() {
    ++epoch_;
    runner::RunnerOptions options;
    options.dispatch = {options_.first_step, options_.end_step, options_.save_steps,
                        options_.window};
    options.first_generation = word_ + 1;
    options.max_generations_without_progress = 1000;
    options.command_deadline = options.quiesce_deadline = kDeadline;
    runner_ = std::make_unique<runner::JobRunner>(model_, plan_, costs_, options);
    result_.recording.clear();
    result_.actions.clear();
    reported_ = -1;
    if (stop_requested_) Inform(runner::StopRequested{});
    for (size_t p = 0; p < processes_.size(); ++p) {
      if (processes_[p].wants_dial) Dial(static_cast<int>(p));
    }
  }

  void Inform(runner::Event event) {
    if (options_.keep_recording) result_.recording.emplace_back(now_, event);
    if (const auto* attached = std::get_if<runner::ProcessAttached>(&event)) {
      processes_[IndexOf(attached->process)].attached_incarnation = attached->incarnation;
    }
    std::vector<runner::Action> actions = runner_->OnEvent(event, now_);
    if (options_.keep_recording) result_.actions.push_back(DebugString(actions));
    for (runner::Action& action : actions) {
      std::visit([this](auto& a) { Do(a); }, action);
    }
  }

  void Do(runner::RaiseGeneration& action) { word_ = std::max(word_, action.generation); }
  void Do(runner::AskQuiesce& action) {
    Message message;
    message.to = Message::To::kQuiesce;
    message.generation = action.generation;
    SendTo(IndexOf(action.process), std::move(message));
  }
  void Do(runner::KillProcess& action) { Kill(IndexOf(action.process)); }
  void Do(runner::ReadRecords& action) {
    std::fill(semaphores_.begin(), semaphores_.end(), 0);
    world_.ForgetDevices();
    Message message;
    message.epoch = epoch_;
    message.event = runner::RecordsRead{action.generation, world_.records()};
    Schedule(now_ + Nanos(1000), Kind::kToCoordinator, messages_.Keep(std::move(message)));
  }
  void Do(runner::StartGeneration& action) {
    for (size_t p = 0; p < processes_.size(); ++p) {
      Message message;
      message.to = Message::To::kStart;
      message.generation = action.generation;
      SendTo(static_cast<int>(p), std::move(message));
    }
  }
  void Do(runner::Send& action) {
    Message message;
    message.to = Message::To::kCommands;
    message.generation = action.generation;
    message.commands = std::move(action.commands);
    SendTo(IndexOf(action.process), std::move(message));
  }
  void Do(runner::StepCompleted& action) {
    if (reported_ >= 0 && action.step != reported_) {
      Fail(absl::InternalError(absl::StrCat("step ", action.step, " reported after ", reported_)));
    }
    reported_ = action.step + 1;
    result_.step_ends.push_back(now_);
    const command::ObjectTableLayout table(model_, plan_.num_microbatches, plan_.replicas);
    const command::ObjectView& scalars = world_.records()[table.IndexOf(
        {command::ObjectKind::kStepScalars, static_cast<int32_t>(action.step & 1), 0})];
    if (scalars.state != command::ObjectState::kClean ||
        scalars.version != static_cast<uint64_t>(action.step) + 1) {
      Fail(absl::InternalError(absl::StrCat("scalars of step ", action.step, " are gone")));
    }
  }
  void Do(runner::JobEnded& action) { ended_ = action.status; }
  void Do(runner::Report&) {}

  // ---- Processes ----

  void Dial(int p) {
    Process& process = processes_[p];
    process.wants_dial = true;
    if (runner_ == nullptr || !process.alive || !Quiet(p)) return;
    process.wants_dial = false;
    process.connected = true;
    process.epoch = epoch_;
    process.quiesce = 0;
    Tell(p, runner::ProcessAttached{process.id, process.incarnation});
  }

  bool Quiet(int p) const {
    return std::none_of(processes_[p].lanes.begin(), processes_[p].lanes.end(),
                        [this](int lane) { return queues_[lane].running(); });
  }

  void QuiesceLanes(int p) {
    for (int lane : processes_[p].lanes) queues_[lane].Quiesce();
  }

  void MaybeAnswer(int p) {
    Process& process = processes_[p];
    if (!process.alive || process.hung || !Quiet(p)) return;
    if (process.quiesce != 0 && process.connected) {
      Tell(p, runner::Quiesced{process.id, process.incarnation, process.quiesce});
      process.quiesce = 0;
    }
    if (process.wants_dial) Dial(p);
  }

  void Kill(int p) {
    Process& process = processes_[p];
    if (!process.alive) return;
    process.alive = process.hung = false;
    for (int lane : process.lanes) {
      if (const command::Command* running = queues_[lane].Running()) world_.Abort(*running);
      queues_[lane] = command::LaneQueue(lane);
      resources_.Free(lane, now_);
      ++stamps_[lane];
    }
    if (process.connected) Tell(p, runner::ProcessLost{process.id, process.incarnation});
    process.connected = process.wants_dial = false;
    process.quiesce = 0;
    Schedule(now_ + Delay() * 2, Kind::kRespawn, p);
  }

  void KillCoordinator() {
    if (runner_ == nullptr) return;
    runner_.reset();
    // Nobody would ever notice them: processes that hang without a coordinator.
    for (size_t p = 0; p < processes_.size(); ++p) {
      if (processes_[p].hung) Kill(static_cast<int>(p));
    }
    for (size_t p = 0; p < processes_.size(); ++p) {
      if (!processes_[p].connected) continue;
      Schedule(now_ + Delay(), Kind::kNotice, static_cast<int64_t>(p), epoch_);
    }
    Schedule(now_ + Delay() * 2, Kind::kRestart, 0);
  }

  void Deliver(int64_t index) {
    Message message = messages_.Take(index);
    if (message.event) {
      if (runner_ != nullptr && message.epoch == epoch_) Inform(std::move(*message.event));
      return;
    }
    Process& process = processes_[message.process];
    if (!process.alive || !process.connected || process.incarnation != message.incarnation ||
        process.epoch != message.epoch) {
      return;
    }
    switch (message.to) {
      case Message::To::kQuiesce:
        QuiesceLanes(message.process);
        process.quiesce = message.generation;
        MaybeAnswer(message.process);
        break;
      case Message::To::kStart:
        for (int lane : process.lanes) {
          if (absl::Status status = queues_[lane].Start(message.generation); !status.ok()) {
            Fail(status);
          }
        }
        break;
      case Message::To::kCommands:
        for (command::Command& command : message.commands) {
          const int lane = static_cast<int>(command.header.lane);
          absl::Status status = queues_[lane].Push(message.generation, std::move(command));
          if (!status.ok() && !absl::IsAborted(status)) Fail(status);
          TryStart(lane);
        }
        break;
    }
  }

  // ---- Lanes ----

  void TryStart(int lane) {
    command::LaneQueue& queue = queues_[lane];
    const command::Command* head = queue.Head();
    if (head == nullptr || processes_[owner_[lane]].hung || queue.generation() != word_ ||
        queue.quiesced())
      return;
    for (const command::SemaphoreWait& wait : head->header.waits) {
      if (semaphores_[wait.semaphore] < wait.value) return;
    }
    if (absl::Status status = world_.Start(*head); !status.ok()) {
      Fail(WithContext(status, DebugString(*head)));
      return;
    }
    Nanos duration = costs_.Duration(*head);
    if (options_.jitter) {
      duration = Nanos(static_cast<int64_t>(static_cast<double>(duration.count()) *
                                            (0.5 + 1.5 * random_.NextDouble())));
    }
    const Nanos end = resources_.Start(lane, now_, duration).end;
    if (options_.keep_timeline) result_.timeline.push_back({lane, now_, end, *head});
    queue.BeginHead();
    Schedule(end, Kind::kLaneDone, lane, ++stamps_[lane]);
  }

  // At the end of a moment: of all heads that may start now, what was issued first gets a resource
  // first.
  void StartHeads() {
    if (!signalled_ || (!events_.empty() && events_.next() == now_)) return;
    signalled_ = false;
    std::vector<std::pair<uint64_t, int>> heads;
    for (int lane = 0; lane < lanes_.size(); ++lane) {
      if (const auto* head = queues_[lane].Head()) heads.emplace_back(head->header.id, lane);
    }
    std::sort(heads.begin(), heads.end());
    for (const auto& [id, lane] : heads) TryStart(lane);
  }

  void FinishLane(int lane) {
    command::LaneQueue& queue = queues_[lane];
    const bool stale = queue.generation() != word_ || queue.quiesced();
    const bool refused = !stale && IsRefused(lane);
    if (refused) Refuse(lane);
    // A survivor's last command of a generation that is over: its commit may or may not happen.
    if (refused || (stale && random_.Below(2) == 0)) {
      world_.Abort(*queue.Running());
    } else if (absl::Status status = world_.Complete(*queue.Running()); !status.ok()) {
      Fail(WithContext(status, DebugString(*queue.Running())));
      return;
    }
    const uint32_t generation = queue.generation();
    const uint64_t value = queue.FinishHead();
    if (value != 0 && generation == word_) {
      semaphores_[lane] = value;
      Process& process = processes_[owner_[lane]];
      if (process.connected) Tell(owner_[lane], runner::LaneProgress{generation, lane, value});
      signalled_ = true;
    }
    MaybeAnswer(owner_[lane]);
  }

  bool IsRefused(int lane) const {
    return refuse_at_.Due(result_.events) && lanes_.LaneAt(lane).kind == command::LaneKind::kHostIo;
  }

  void Refuse(int lane) {
    refuse_at_.Take(result_.events);
    const command::CommandHeader& header = queues_[lane].Running()->header;
    if (processes_[owner_[lane]].connected) {
      Tell(owner_[lane],
           runner::CommandFailed{queues_[lane].generation(), lane, header.signal_value,
                                 absl::ResourceExhaustedError("no room")});
    }
    queues_[lane].Quiesce();
    // Else it is tried again when the pause is over.
    if (random_.Below(4) > 0) Schedule(now_ + Delay() * 8, Kind::kTryNow, 0);
  }

  // ---- The clock ----

  void OneEvent() {
    const auto [at, order, event] = events_.TakeNext();
    now_ = at;
    ++result_.events;
    switch (event.kind) {
      case Kind::kToCoordinator:
      case Kind::kToProcess:
        Deliver(event.a);
        break;
      case Kind::kLaneDone:
        if (stamps_[event.a] == event.b && !processes_[owner_[event.a]].hung)
          FinishLane(static_cast<int>(event.a));
        break;
      case Kind::kRespawn:
        processes_[event.a].alive = true;
        ++processes_[event.a].incarnation;
        Dial(static_cast<int>(event.a));
        break;
      case Kind::kNotice: {
        const int p = static_cast<int>(event.a);
        Process& process = processes_[p];
        if (!process.alive || !process.connected || process.epoch != event.b) break;
        process.connected = false;
        process.quiesce = 0;
        QuiesceLanes(p);
        Dial(p);
        break;
      }
      case Kind::kRestart:
        StartCoordinator();
        break;
      case Kind::kTick:
        if (runner_ != nullptr) Inform(runner::Tick{});
        Schedule(now_ + kTickPeriod, Kind::kTick, 0);
        break;
      case Kind::kTryNow:
        if (runner_ != nullptr) Inform(runner::TryNow{});
        break;
    }
    StartHeads();
    if (result_.events == options_.stop_at_event) {
      stop_requested_ = true;
      if (runner_ != nullptr) Inform(runner::StopRequested{});
    }
    while (!ended_ && kill_at_.Take(result_.events)) {
      const uint64_t victim = random_.Below(processes_.size() + 1);
      if (victim == processes_.size()) {
        KillCoordinator();
      } else {
        Kill(static_cast<int>(victim));
      }
    }
    while (!ended_ && hang_at_.Take(result_.events)) {
      Process& victim = processes_[random_.Below(processes_.size())];
      victim.hung = victim.connected && runner_ != nullptr && victim.epoch == epoch_;
    }
    if (options_.check_derivable) {
      if (absl::Status status = world_.CheckDerivable(); !status.ok()) Fail(std::move(status));
    }
  }

  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  const model::ModelSpec& model_;
  const plan::Plan& plan_;
  const dispatch::CostModel& costs_;
  const SimOptions& options_;
  CounterRandom random_;
  command::LaneTable lanes_;
  SimWorld world_;
  std::vector<Process> processes_;
  std::vector<command::LaneQueue> queues_;  // by lane
  std::vector<int> owner_;                  // by lane
  std::vector<uint64_t> semaphores_;        // by lane, of the generation
  std::vector<uint64_t> stamps_;            // by lane: which completion event is the current one
  plan::ResourceClock resources_;
  FaultTimes kill_at_, hang_at_, refuse_at_;
  uint32_t word_ = 0;   // the generation word of the segment
  uint32_t epoch_ = 0;  // coordinator's incarnation
  std::unique_ptr<runner::JobRunner> runner_;
  EventQueue<Happening> events_;
  Pool<Message> messages_;
  Nanos now_;
  int64_t reported_;
  bool signalled_ = false;  // at this moment: heads may start
  bool stop_requested_ = false;
  std::optional<absl::Status> ended_;
  absl::Status status_;
  SimResult result_;
};

}  // namespace

SimResult Simulate(const model::ModelSpec& model, const plan::Plan& plan,
                   const dispatch::CostModel& costs, const SimOptions& options) {
  return Simulation(model, plan, costs, options).Run();
}

}  // namespace harmony::sim
