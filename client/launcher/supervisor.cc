#include "client/launcher/supervisor.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/launcher/stop_signals.h"
#include "common/base/status.h"
#include "common/ipc/host_memory.h"

namespace harmony::client {
namespace {

// How often the socket is tried until the coordinator listens.
constexpr Nanos kReadyPoll = Millis(20);
constexpr int kLogLinesShown = 20;
// Far below the default limit of heartbeats; a shorter limit is looked at more often.
constexpr Nanos kLongestLook = Millis(500);
constexpr int64_t kLooksPerLimit = 16;
// A look that comes this many times later than it should says that we were stopped, not just slow.
constexpr int64_t kLateLooks = 4;

Nanos LookFor(Nanos hang_limit) {
  if (hang_limit == Nanos(0)) return kLongestLook;
  return std::min(kLongestLook, Nanos(hang_limit.count() / kLooksPerLimit));
}

int64_t FileSize(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 ? info.st_size : 0;
}

sigset_t HandledSignals() {
  sigset_t set = SignalsThatStop();
  for (int signal : {SIGQUIT, SIGUSR1}) sigaddset(&set, signal);
  return set;
}

// Whether a program cannot be started for what somebody has to mend, and not for want of processes,
// memory, descriptors or room for its log.
bool IsMistake(const absl::Status& started) {
  return absl::IsNotFound(started) || absl::IsPermissionDenied(started) ||
         absl::IsInvalidArgument(started);
}

}  // namespace

Supervisor::Supervisor(SupervisorOptions options)
    : options_(std::move(options)),
      look_(LookFor(options_.hang_limit)),
      clock_(MonotonicClock(), look_ * kLateLooks) {
  sigset_t set = HandledSignals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_ = ipc::UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  // Nobody may be reading what is logged any more.
  signal(SIGPIPE, SIG_IGN);
  for (Service& service : options_.services) {
    Running process;
    process.service = std::move(service);
    process.policy = RestartPolicy(/*gives_up=*/processes_.empty() || !options_.keep_up);
    process.watch = HeartbeatWatch(options_.hang_limit);
    processes_.push_back(std::move(process));
  }
}

absl::Status Supervisor::Run() {
  for (Running& process : processes_) {
    absl::Status started = Start(process);
    if (IsMistake(started)) {
      Fail(started);
      break;
    }
    if (!started.ok()) OnFailedStart(process, started);
  }
  Publish();
  while (phase_ == Phase::kRunning || phase_ == Phase::kStoppingCoordinator || AnyAlive()) {
    std::vector<pollfd> polled = {{signals_.get(), POLLIN, 0}};
    for (const Running& process : processes_) {
      polled.push_back({process.child.pid != 0 ? process.child.pidfd.get() : -1, POLLIN, 0});
    }
    if (poll(polled.data(), polled.size(), PollTimeout()) < 0 && errno != EINTR) {
      return absl::ErrnoToStatus(errno, "waiting for processes");
    }
    if (polled[0].revents != 0) OnSignal();
    for (size_t i = 0; i < processes_.size(); ++i) {
      if (polled[i + 1].revents != 0) Reap(processes_[i]);
    }
    AdvancePhases();
    oom_.Look(ipc::OomKills(), clock_.Now());
    StartWhatIsDue();
    KillWhatHangs();
    CheckReady();
    if (options_.on_turn) options_.on_turn(phase_ != Phase::kRunning);
  }
  RemoveRuntimeFiles(options_.paths);
  return result_;
}

absl::Status Supervisor::Start(Running& process) {
  process.restart_at.reset();
  ChildSpec spec = process.service.child;
  spec.environment.emplace_back("HARMONY_INCARNATION", absl::StrCat(process.incarnation + 1));
  spec.environment.emplace_back("HARMONY_OWN_DEATHS", absl::StrCat(process.own_deaths));
  const int cell = CellOf(process);
  spec.environment.emplace_back(ipc::kHeartbeatVariable, options_.heartbeats->VariableFor(cell));
  spec.inherited_fds.push_back(options_.heartbeats->fd());
  options_.heartbeats->Reset(cell);
  int64_t log_start = FileSize(spec.log_path);
  HARMONY_ASSIGN_OR_RETURN(process.child, Spawn(spec));
  if (&process == &processes_.front()) told_to_stop_ = false;
  ++process.incarnation;
  process.log_start = log_start;
  process.started = clock_.Now();
  process.hung = false;
  process.watch.OnStart(process.started);
  spdlog::info("{} started: pid {}, incarnation {}", process.service.name(), process.child.pid,
               process.incarnation);
  return absl::OkStatus();
}

void Supervisor::StartWhatIsDue() {
  bool changed = false;
  for (Running& process : processes_) {
    if (!RestartsNow(process) || clock_.Now() < *process.restart_at) continue;
    if (absl::Status started = Start(process); !started.ok()) OnFailedStart(process, started);
    changed = true;
  }
  if (changed) Publish();
}

void Supervisor::OnFailedStart(Running& process, const absl::Status& why) {
  spdlog::warn("{} cannot be started: {}", process.service.name(), std::string(why.message()));
  RestartLater(process, Nanos(0), /*killed=*/false,
               absl::StrCat(" cannot be started, given up: ", why.message()));
}

void Supervisor::KillWhatHangs() {
  for (Running& process : processes_) {
    if (process.child.pid == 0 || !MustRun()) continue;
    const Nanos limit = process.watch.limit();
    if (!process.watch.OnLook(options_.heartbeats->beats(CellOf(process)), clock_.Now())) continue;
    spdlog::error("{} hangs: pid {}, incarnation {}, has given no sign for {}: killing it",
                  process.service.name(), process.child.pid, process.incarnation,
                  FormatDuration(limit));
    process.hung = true;
    kill(process.child.pid, SIGKILL);
  }
}

void Supervisor::Reap(Running& process) {
  int wait_status = 0;
  if (waitpid(process.child.pid, &wait_status, WNOHANG) != process.child.pid) return;
  pid_t pid = std::exchange(process.child, Child()).pid;
  const bool coordinator = &process == &processes_.front();
  const bool ended_well = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
  if (coordinator && ended_well && phase_ == Phase::kStoppingCoordinator) {
    spdlog::info("coordinator stopped: pid {}", pid);
    return Enter(Phase::kStoppingOthers);
  }
  if (MustRun()) {
    spdlog::warn("{} died: pid {}, incarnation {}, {}", process.service.name(), pid,
                 process.incarnation, DescribeExit(wait_status));
    OnDeath(process, wait_status);
  } else {
    spdlog::info("{} stopped: pid {}, {}", process.service.name(), pid, DescribeExit(wait_status));
  }
  Publish();
}

void Supervisor::OnDeath(Running& process, int wait_status) {
  // Once the coordinator has come back anew, a refusal is about the moment, not the configuration.
  bool first_life = process.incarnation == 0 && processes_.front().incarnation == 0;
  bool bad_configuration = first_life && WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 2;
  bool killed = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL;
  oom_.Look(ipc::OomKills(), clock_.Now());
  const bool starved = killed && !process.hung && oom_.MayHaveKilled(clock_.Now());
  if (starved) {
    spdlog::error(
        "{} was killed while the kernel was short of memory and killed for it (dmesg says whom): "
        "less --host-memory, or fewer other programs, leave more",
        process.service.name());
  }
  if (!killed || process.hung || starved) ++process.own_deaths;
  const std::string& log = process.service.child.log_path;
  std::string tail = absl::StrCat(" (", DescribeExit(wait_status), "); last lines of ", log, ":\n",
                                  TailOfFile(log, kLogLinesShown, process.log_start));
  if (bad_configuration) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat(process.service.name(), " refused to start", tail)));
  }
  RestartLater(process, clock_.Now() - process.started, killed,
               absl::StrCat(" keeps dying, given up", tail));
}

void Supervisor::RestartLater(Running& process, Nanos lifetime, bool killed,
                              const std::string& why) {
  std::optional<Nanos> delay = process.policy.OnDeath(lifetime, killed);
  process.restart_at = clock_.Now() + delay.value_or(RestartPolicy::kLongestDelay);
  const bool coordinator = &process == &processes_.front();
  if (delay || (!coordinator && phase_ != Phase::kRunning)) return;
  Fail(absl::InternalError(absl::StrCat(process.service.name(), why)),
       coordinator ? Phase::kStoppingOthers : Phase::kStoppingCoordinator);
}

void Supervisor::OnSignal() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    spdlog::info("signal {} from process {}", info.ssi_signo, info.ssi_pid);
    orphaned_ |= info.ssi_signo == SIGUSR1;
    const bool asks = info.ssi_signo != SIGQUIT && info.ssi_signo != SIGUSR1;
    if (asks && phase_ == Phase::kStoppingCoordinator && options_.on_second_signal) {
      std::exchange(options_.on_second_signal, nullptr)();
      continue;
    }
    bool at_once = info.ssi_signo == SIGQUIT || orphaned_ || phase_ != Phase::kRunning;
    Enter(at_once ? Phase::kKilling : Phase::kStoppingCoordinator);
  }
}

void Supervisor::CheckReady() {
  if (ready_ || phase_ != Phase::kRunning || !SocketAccepts(options_.paths.socket())) return;
  ready_ = true;
  if (options_.on_ready) options_.on_ready();
}

void Supervisor::Enter(Phase phase) {
  phase_ = phase;
  Publish();
  switch (phase) {
    case Phase::kRunning:
      break;
    case Phase::kStoppingCoordinator:
      TellCoordinatorToStop();
      break;
    case Phase::kStoppingOthers:
      phase_deadline_ = clock_.Now() + options_.grace;
      SignalAll(SIGTERM);
      break;
    case Phase::kKilling:
      phase_deadline_.reset();
      SignalAll(SIGKILL);
      break;
  }
}

void Supervisor::AdvancePhases() {
  const bool expired = phase_deadline_ && clock_.Now() >= *phase_deadline_;
  if (phase_ == Phase::kStoppingCoordinator) {
    TellCoordinatorToStop();
  } else if (phase_ == Phase::kStoppingOthers && expired) {
    spdlog::warn("some processes did not stop in time: killing them");
    Enter(Phase::kKilling);
  }
}

void Supervisor::TellCoordinatorToStop() {
  const pid_t pid = processes_.front().child.pid;
  if (told_to_stop_ || pid == 0 || !SocketAccepts(options_.paths.socket())) return;
  told_to_stop_ = true;
  kill(pid, SIGTERM);
}

void Supervisor::Fail(const absl::Status& status, Phase phase) {
  spdlog::error("{}", std::string(status.message()));
  result_.Update(status);
  Enter(phase);
}

void Supervisor::SignalAll(int signal) {
  for (const Running& process : processes_) {
    if (process.child.pid != 0) kill(process.child.pid, signal);
  }
}

void Supervisor::Publish() {
  ProcessList list;
  list.supervisor = getpid();
  list.socket = options_.paths.socket();
  list.devices = options_.devices;
  list.state_dir = options_.paths.state_dir;
  list.stopping = phase_ != Phase::kRunning;
  for (const Running& process : processes_) {
    list.processes.push_back({process.service.role, process.service.device, process.child.pid,
                              std::max<int64_t>(process.incarnation, 0),
                              process.service.child.log_path});
  }
  absl::Status written = WriteProcessList(options_.paths, list);
  if (!written.ok()) spdlog::warn("{}", std::string(written.message()));
}

int Supervisor::PollTimeout() const {
  std::optional<Nanos> next = phase_deadline_;
  auto consider = [&next](Nanos time) { next = next ? std::min(*next, time) : time; };
  for (const Running& process : processes_) {
    if (RestartsNow(process)) consider(*process.restart_at);
  }
  const bool awaited =
      phase_ == Phase::kRunning ? !ready_ : phase_ == Phase::kStoppingCoordinator && !told_to_stop_;
  if (awaited) consider(clock_.Now() + kReadyPoll);
  const Nanos left = next ? std::min(*next - clock_.Now(), look_) : look_;
  return static_cast<int>(std::max<int64_t>((left.count() + 999'999) / 1'000'000, 0));
}

bool Supervisor::MustRun() const {
  return phase_ == Phase::kRunning || phase_ == Phase::kStoppingCoordinator;
}

bool Supervisor::RestartsNow(const Running& process) const {
  return process.restart_at && MustRun();
}

int Supervisor::CellOf(const Running& process) const {
  return static_cast<int>(&process - processes_.data());
}

bool Supervisor::AnyAlive() const {
  return std::any_of(processes_.begin(), processes_.end(),
                     [](const Running& process) { return process.child.pid != 0; });
}

}  // namespace harmony::client
