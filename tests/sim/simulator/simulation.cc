#include "tests/sim/simulator/simulation.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "tests/sim/simulator/faults.h"
#include "tests/sim/simulator/sim_coordinator.h"
#include "tests/sim/simulator/sim_lanes.h"
#include "tests/sim/simulator/sim_post.h"
#include "tests/sim/simulator/sim_world.h"

namespace harmony::sim {
namespace {

using Kind = Happening::Kind;
using What = SimMessage::What;

constexpr int64_t kMaxEvents = 5'000'000;
constexpr Nanos kTickPeriod(500'000);
// The launcher kills whose heartbeat stands still for as long.
constexpr Nanos kHeartbeat(6'000'000);
constexpr int kCoordinator = -1;

class Simulation {
 public:
  Simulation(const model::ModelSpec& model, const plan::Plan& plan,
             const dispatch::CostModel& costs, const SimOptions& options)
      : options_(options),
        random_(options.seed, 1),
        post_(options.jitter ? options.message_delay : Nanos(), random_),
        world_(model, plan, options.first_step),
        lanes_(model, plan, costs, options.jitter, world_, random_,
               options.keep_timeline ? &result_.timeline : nullptr,
               [this](Nanos at, int lane, uint64_t stamp) {
                 post_.Schedule(at, Kind::kLaneDone, lane, stamp);
               }),
        processes_(2 + plan.devices.size()),
        coordinator_(model, plan, costs, options, post_, world_, lanes_, processes_, result_),
        kill_at_(options.kills, options.fault_events, random_),
        hang_at_(options.hangs, options.fault_events, random_),
        refuse_at_(options.refusals, options.fault_events, random_),
        stop_at_(options.stops, options.fault_events, random_),
        break_at_(options.stream_losses, options.fault_events, random_),
        fail_at_(options.failures, options.fault_events, random_) {
    processes_[0].id = {runner::Role::kSwapper, 0};
    processes_[1].id = {runner::Role::kHostWorker, 0};
    for (size_t d = 0; d < plan.devices.size(); ++d) {
      processes_[2 + d].id = {runner::Role::kWorker, static_cast<int>(d)};
    }
    for (int lane = 0; lane < lanes_.table().size(); ++lane) {
      owner_.push_back(
          IndexOf(runner::OwnerOf(lanes_.table().LaneAt(lane), options.worker_copies)));
      processes_[owner_.back()].lanes.push_back(lane);
    }
  }

  SimResult Run() {
    BeginCoordinator();
    for (int p = 0; p < num_processes(); ++p) Dial(p);
    const bool deadlines = options_.hangs + options_.stops + options_.refusals > 0;
    if (deadlines) post_.Schedule(kTickPeriod, Kind::kTick);
    while (status_.ok() && !coordinator_.ended() && !post_.empty() && result_.events < kMaxEvents)
      OneEvent();
    if (status_.ok() && !coordinator_.ended()) {
      status_ = absl::InternalError(absl::StrCat("the job hangs after event ", result_.events,
                                                 ", generation ", coordinator_.word()));
    }
    if (status_.ok() && coordinator_.ended()->ok()) {
      // One that was stopped before it had trained anything has nothing to show.
      const int64_t steps = coordinator_.dispatcher().completed_steps();
      const bool trains = options_.end_step > options_.first_step;
      if (!trains || steps > options_.first_step) status_ = world_.CheckFinal(steps);
    } else if (status_.ok()) {
      status_ = *coordinator_.ended();
    }
    if (!status_.ok()) {
      status_ = WithContext(
          status_, absl::StrCat("event ", result_.events, " generation ", coordinator_.word()));
    }
    result_.status = status_;
    result_.finished = post_.now();
    result_.generations = coordinator_.word();
    if (coordinator_.alive()) {
      result_.completed_steps = coordinator_.dispatcher().completed_steps();
      for (int d = 0; d < lanes_.table().num_devices(); ++d) {
        result_.peak_resident.push_back(coordinator_.dispatcher().PeakBytes(d));
      }
    }
    result_.moved_bytes = world_.moved_bytes();
    for (int64_t i = 0; i < lanes_.stale_starts(); ++i) result_.seen.Note(Seen::kStaleStart);
    return std::move(result_);
  }

 private:
  int num_processes() const { return static_cast<int>(processes_.size()); }
  int IndexOf(const runner::ProcessId& id) const {
    return id.role == runner::Role::kWorker ? 2 + id.device : static_cast<int>(id.role);
  }

  SimMessage MessageOf(int p, What what) const {
    SimMessage message;
    message.process = p;
    message.session = processes_[p].session;
    message.epoch = coordinator_.epoch();
    message.what = what;
    message.incarnation = processes_[p].incarnation;
    return message;
  }

  void Tell(int p, What what, std::optional<runner::Event> event = std::nullopt) {
    SimMessage message = MessageOf(p, what);
    message.event = std::move(event);
    post_.Send(processes_[p], false, std::move(message));
  }

  // ---- The coordinator's process ----

  void BeginCoordinator() {
    coordinator_.Start();
    for (int p = 0; p < num_processes(); ++p) {
      if (processes_[p].wants_dial) Dial(p);
    }
  }

  void KillCoordinator() {
    if (!coordinator_.alive()) return;
    result_.seen.Note(Seen::kCoordinatorDeath);
    coordinator_.Die();
    Forget(coordinator_stopped_);
    for (int p = 0; p < num_processes(); ++p) {
      if (!processes_[p].connected) continue;
      post_.ScheduleIn(post_.Delay(), Kind::kBroken, p, processes_[p].session);
    }
    post_.ScheduleIn(post_.Delay() * 2, Kind::kRestart);
  }

  // ---- Processes ----

  void Dial(int p) {
    SimProcess& process = processes_[p];
    process.wants_dial = true;
    if (!coordinator_.alive() || !process.alive || process.stopped.now || !Quiet(p)) return;
    process.wants_dial = false;
    process.connected = true;
    process.session = ++sessions_;
    process.quiesce = 0;
    Tell(p, What::kHello);
  }

  bool Quiet(int p) const {
    return std::none_of(processes_[p].lanes.begin(), processes_[p].lanes.end(),
                        [this](int lane) { return lanes_.running(lane); });
  }

  void QuiesceLanes(int p) {
    for (int lane : processes_[p].lanes) lanes_.Quiesce(lane, post_.now());
  }

  void MaybeAnswer(int p) {
    SimProcess& process = processes_[p];
    if (!process.alive || !Quiet(p)) return;
    if (process.quiesce != 0 && process.connected) {
      Tell(p, What::kEvent, runner::Quiesced{process.id, process.incarnation, process.quiesce});
      process.quiesce = 0;
    }
    if (process.wants_dial) Dial(p);
  }

  void Kill(int p) {
    SimProcess& process = processes_[p];
    if (!process.alive) return;
    result_.seen.Note(Seen::kDeath);
    if (process.setting_up) result_.seen.Note(Seen::kDeathInSetUp);
    process.alive = process.setting_up = false;
    for (int lane : process.lanes) lanes_.Die(lane, post_.now());
    if (process.connected) Tell(p, What::kClosed);
    process.connected = process.wants_dial = false;
    process.quiesce = 0;
    Forget(process.stopped);
    post_.ScheduleIn(post_.Delay() * 2, Kind::kRespawn, p);
  }

  // It sees that its stream is broken: what is queued is dropped, what runs is waited for.
  void OnBroken(int p, uint64_t session) {
    SimProcess& process = processes_[p];
    if (!process.alive || !process.connected || process.session != session) return;
    process.connected = process.setting_up = false;
    process.quiesce = 0;
    QuiesceLanes(p);
    Dial(p);
  }

  void BreakStream(int p) {
    const SimProcess& process = processes_[p];
    if (!process.connected || !coordinator_.alive()) return;
    result_.seen.Note(Seen::kBrokenStream);
    post_.SendLoss(process, MessageOf(p, What::kClosed));
    post_.ScheduleIn(post_.Delay(), Kind::kBroken, p, process.session);
  }

  void OnSetUp(int p, uint64_t session) {
    SimProcess& process = processes_[p];
    if (!process.alive || !process.connected || process.session != session) return;
    process.setting_up = false;
    const bool refused = refuse_at_.Take(result_.events);
    if (refused) result_.seen.Note(Seen::kRefusedSetUp);
    Tell(p, refused ? What::kJobRefused : What::kJobReady);
  }

  void OnMessage(SimMessage message) {
    const int p = message.process;
    SimProcess& process = processes_[p];
    if (!process.alive || !process.connected || process.session != message.session) return;
    switch (message.what) {
      case What::kJob:
        process.setting_up = true;
        return post_.ScheduleIn(post_.Delay() * 2, Kind::kSetUp, p, message.session);
      case What::kQuiesce:
        QuiesceLanes(p);
        process.quiesce = message.generation;
        return MaybeAnswer(p);
      case What::kStart:
        for (int lane : process.lanes) Check(lanes_.StartGeneration(lane, message.generation));
        return;
      case What::kCommands:
        for (command::Command& command : message.commands) {
          const int lane = static_cast<int>(command.header.lane);
          Check(lanes_.Push(lane, message.generation, std::move(command)));
          Check(lanes_.TryStart(lane, post_.now(), coordinator_.word()));
        }
        return;
      default:
        return;
    }
  }

  void OnLaneDone(int lane, uint64_t stamp) {
    const command::Command* running = lanes_.Ending(lane, stamp);
    if (running == nullptr) return;
    const int p = owner_[lane];
    const uint32_t generation = lanes_.GenerationOf(lane);
    const uint64_t due = running->header.signal_value;
    if (absl::Status failure = FailureOf(lane); !failure.ok()) {
      lanes_.Fail(lane);
      if (processes_[p].connected) {
        Tell(p, What::kEvent, runner::CommandFailed{generation, lane, due, std::move(failure)});
      }
    } else if (absl::StatusOr<uint64_t> value = lanes_.Complete(lane); !value.ok()) {
      Fail(value.status());
    } else if (*value != 0 && processes_[p].connected) {
      Tell(p, What::kEvent, runner::LaneProgress{generation, lane, *value});
    }
    MaybeAnswer(p);
  }

  absl::Status FailureOf(int lane) {
    if (lanes_.quiesced(lane)) return absl::OkStatus();
    if (lanes_.table().LaneAt(lane).kind == command::LaneKind::kHostIo &&
        refuse_at_.Take(result_.events)) {
      result_.seen.Note(Seen::kRefusedCommand);
      // Else it is tried again when the pause is over.
      if (random_.Below(4) > 0) post_.ScheduleIn(post_.Delay() * 8, Kind::kTryNow);
      return absl::ResourceExhaustedError("no room");
    }
    if (!fail_at_.Take(result_.events)) return absl::OkStatus();
    result_.seen.Note(Seen::kFailedCommand);
    return absl::AbortedError("try again");
  }

  // ---- Stops ----

  Stopped& StoppedOf(int64_t who) {
    return who == kCoordinator ? coordinator_stopped_ : processes_[who].stopped;
  }

  // Who comes to it, if that is stopped; else null.
  Stopped* Postponer(const Happening& event) {
    int64_t who = event.a;
    switch (event.kind) {
      case Kind::kToCoordinator:
      case Kind::kTellJob:
      case Kind::kTryNow:
      case Kind::kStopRequest:
        who = kCoordinator;
        break;
      case Kind::kToProcess:
        who = static_cast<int64_t>(event.b);
        break;
      case Kind::kLaneDone:
        who = owner_[event.a];
        break;
      case Kind::kBroken:
      case Kind::kSetUp:
        break;
      default:
        return nullptr;
    }
    Stopped& stopped = StoppedOf(who);
    return stopped.now ? &stopped : nullptr;
  }

  void Stop(int who, bool for_ever) {
    Stopped& stopped = StoppedOf(who);
    const bool lives = who == kCoordinator ? coordinator_.alive() : processes_[who].alive;
    if (!lives || stopped.now) return;
    stopped.now = true;
    stopped.since = post_.now();
    ++stopped.number;
    SetLanesStopped(who, true);
    post_.ScheduleIn(kHeartbeat, Kind::kHangs, who, stopped.number);
    if (for_ever) return;
    // As long as some messages take, or about as long as others wait.
    const Nanos shortly = post_.Delay() * 4, longest(kHeartbeat.count() * 5 / 4);
    const Nanos takes = random_.Below(2) == 0
                            ? shortly
                            : Nanos(static_cast<int64_t>(random_.Below(longest.count())));
    post_.ScheduleIn(takes, Kind::kGoOn, who, stopped.number);
  }

  void SetLanesStopped(int who, bool stopped) {
    if (who == kCoordinator) return;
    for (int lane : processes_[who].lanes) lanes_.Stop(lane, stopped);
  }

  // Of one that is dead: its successor is not stopped.
  static void Forget(Stopped& stopped) {
    stopped.now = false;
    stopped.postponed.clear();
  }

  void GoOn(int who, uint64_t number) {
    Stopped& stopped = StoppedOf(who);
    if (!stopped.now || stopped.number != number) return;
    stopped.now = false;
    result_.seen.Note(who == kCoordinator ? Seen::kCoordinatorWentOn : Seen::kWentOn);
    SetLanesStopped(who, false);
    if (who == kCoordinator) {
      coordinator_.Stood(post_.now() - stopped.since);
      if (random_.Below(2) == 0) coordinator_.Inform(runner::Tick{});
    }
    for (const Happening& event : std::exchange(stopped.postponed, {})) {
      if (!coordinator_.ended()) Handle(event);
    }
    lanes_.Signal();
    if (who != kCoordinator) MaybeAnswer(who);
  }

  void KillHung(int who, uint64_t number) {
    const Stopped& stopped = StoppedOf(who);
    if (!stopped.now || stopped.number != number) return;
    result_.seen.Note(who == kCoordinator ? Seen::kCoordinatorKilledAsHung : Seen::kKilledAsHung);
    if (!coordinator_.alive()) result_.seen.Note(Seen::kKilledAsHungWithoutCoordinator);
    KillAny(who);
  }

  void KillAny(int who) {
    if (who == kCoordinator) {
      KillCoordinator();
    } else {
      Kill(who);
    }
  }

  // ---- The clock ----

  void Handle(const Happening& event) {
    if (Stopped* stopped = Postponer(event)) {
      stopped->postponed.push_back(event);
      return;
    }
    const int a = static_cast<int>(event.a);
    switch (event.kind) {
      case Kind::kToCoordinator:
        return coordinator_.OnMessage(post_.Take(event.a));
      case Kind::kToProcess:
        return OnMessage(post_.Take(event.a));
      case Kind::kLaneDone:
        return OnLaneDone(a, event.b);
      case Kind::kKill:
        if (processes_[a].incarnation == event.b) Kill(a);
        return;
      case Kind::kRespawn:
        processes_[a].alive = true;
        ++processes_[a].incarnation;
        return Dial(a);
      case Kind::kBroken:
        return OnBroken(a, event.b);
      case Kind::kSetUp:
        return OnSetUp(a, event.b);
      case Kind::kTellJob:
        return coordinator_.TellJob(a, event.b);
      case Kind::kGoOn:
        return GoOn(a, event.b);
      case Kind::kHangs:
        return KillHung(a, event.b);
      case Kind::kRestart:
        return BeginCoordinator();
      case Kind::kTick:
        if (coordinator_.alive() && !coordinator_stopped_.now) coordinator_.Inform(runner::Tick{});
        return post_.ScheduleIn(kTickPeriod, Kind::kTick);
      case Kind::kTryNow:
        if (coordinator_.alive()) coordinator_.Inform(runner::TryNow{});
        return;
      case Kind::kStopRequest:
        return coordinator_.StopRequested();
    }
  }

  void OneEvent() {
    ++result_.events;
    Handle(post_.TakeNext());
    if (lanes_.signalled() && post_.IsEndOfMoment()) {
      Check(lanes_.StartHeads(post_.now(), coordinator_.word()));
    }
    Check(coordinator_.broken());
    if (result_.events == options_.stop_at_event) Handle({Kind::kStopRequest});
    DoFaults();
    if (options_.check_derivable) Check(world_.CheckDerivable());
  }

  void DoFaults() {
    const auto any = [this] { return static_cast<int>(random_.Below(processes_.size() + 1)) - 1; };
    const auto process = [this] { return static_cast<int>(random_.Below(processes_.size())); };
    while (!coordinator_.ended() && kill_at_.Take(result_.events)) KillAny(any());
    while (!coordinator_.ended() && hang_at_.Take(result_.events)) Stop(any(), true);
    while (!coordinator_.ended() && stop_at_.Take(result_.events)) Stop(any(), false);
    while (!coordinator_.ended() && break_at_.Take(result_.events)) BreakStream(process());
  }

  void Check(absl::Status status) {
    if (!status.ok()) Fail(std::move(status));
  }

  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  const SimOptions& options_;
  SimResult result_;
  CounterRandom random_;
  SimPost post_;
  SimWorld world_;
  SimLanes lanes_;
  std::vector<SimProcess> processes_;
  SimCoordinator coordinator_;
  Stopped coordinator_stopped_;
  std::vector<int> owner_;  // by lane
  FaultTimes kill_at_, hang_at_, refuse_at_, stop_at_, break_at_, fail_at_;
  uint64_t sessions_ = 0;  // streams so far
  absl::Status status_;
};

}  // namespace

SimResult Simulate(const model::ModelSpec& model, const plan::Plan& plan,
                   const dispatch::CostModel& costs, const SimOptions& options) {
  return Simulation(model, plan, costs, options).Run();
}

}  // namespace harmony::sim
