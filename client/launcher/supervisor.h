#pragma once

// The supervisor: starts the processes of one runtime directory, starts again what dies, stops all.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/launcher/child_process.h"
#include "client/launcher/heartbeat_watch.h"
#include "client/launcher/oom_watch.h"
#include "client/launcher/restart_policy.h"
#include "client/launcher/runtime_dir.h"
#include "client/launcher/services.h"
#include "common/base/attended_clock.h"
#include "common/ipc/heartbeat.h"

namespace harmony::client {

struct SupervisorOptions {
  RuntimePaths paths;
  std::string devices;  // shown by `harmony status`
  // The first is the coordinator: it is stopped before the others. HARMONY_INCARNATION,
  // HARMONY_OWN_DEATHS and HARMONY_HEARTBEAT are added to the environment of each.
  std::vector<Service> services;
  Nanos grace = Seconds(5);  // for all but the coordinator, which writes a checkpoint first
  // A cell for each service, in their order; outlives the supervisor.
  ipc::HeartbeatTable* heartbeats = nullptr;
  Nanos hang_limit = HeartbeatWatch::kDefaultLimit;  // as HeartbeatWatch
  // What keeps dying is started again and again, but for the coordinator: that ends no more than
  // the job, which the coordinator sees to. Else it is given up, and all is stopped.
  bool keep_up = false;
  // Called once, when the coordinator's socket accepts connections.
  std::function<void()> on_ready;
  // Called each time round, several times a second; whether all is being stopped.
  std::function<void(bool stopping)> on_turn;
  // Where somebody may see it: called at the second signal, which ends nothing then, to say what
  // the third one loses. Does not wait.
  std::function<void()> on_second_signal;
};

// Owned by the launcher's main; one thread, which is the main thread (parent-death signals fire
// when the spawning thread exits). Everything is one poll loop over pidfds, a signalfd and the next
// deadline. What must run and hangs (heartbeat_watch.h) is killed, and then is one that died. Time
// in which this process was itself stopped counts in no deadline.
//
// SignalsThatStop() stop: the coordinator first, which has a checkpoint written and is given all
// the time that it takes, unless it hangs; then the rest. So does giving up on one of the others.
// Until the coordinator has ended well, all are started again when they die, itself too: what was
// trained is still in the segment, and its successor is told to stop in turn. A further signal
// (with on_second_signal, the third), SIGQUIT, or SIGUSR1 (who started us has died) kills all at
// once. Run() returns when every child has been reaped, and has then removed socket and process
// list.
class Supervisor {
 public:
  // Blocks those signals for the thread; call before anything is spawned.
  explicit Supervisor(SupervisorOptions options);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // OK after a stop that was asked for. InvalidArgument when a process of the first incarnation
  // exited with code 2 under the first coordinator (its configuration is wrong), Internal when one
  // was given up: the message has the last lines of its log.
  absl::Status Run();
  // SIGUSR1 has come.
  bool orphaned() const { return orphaned_; }

 private:
  enum class Phase {
    kRunning,              // what dies is started again
    kStoppingCoordinator,  // it gets SIGTERM; what dies before it has ended well is started again
    kStoppingOthers,       // all have SIGTERM
    kKilling,              // all have SIGKILL
  };
  struct Running {
    Service service;
    Child child;  // pid 0: not running
    int64_t incarnation = -1;
    // Incarnations that no user killed, that hung, or were killed for want of memory.
    int64_t own_deaths = 0;
    bool hung = false;  // the one that runs has been killed for it
    Nanos started;
    int64_t log_start = 0;  // size of the log file when this incarnation started
    std::optional<Nanos> restart_at;
    RestartPolicy policy;
    HeartbeatWatch watch;
  };

  absl::Status Start(Running& process);
  void StartWhatIsDue();
  void OnFailedStart(Running& process, const absl::Status& why);
  void KillWhatHangs();
  void Reap(Running& process);
  void OnDeath(Running& process, int wait_status);
  // Restarts it after the pause that the policy says, or gives it up: `why` it did not go on.
  void RestartLater(Running& process, Nanos lifetime, bool killed, const std::string& why);
  void OnSignal();
  void CheckReady();
  // Moves on to `phase`, sends its signals, sets its deadline.
  void Enter(Phase phase);
  void AdvancePhases();
  // Has the coordinator stop as soon as it listens: before, it would just die of the signal.
  void TellCoordinatorToStop();
  // `phase`: where stopping begins.
  void Fail(const absl::Status& status, Phase phase = Phase::kStoppingOthers);
  void SignalAll(int signal);
  void Publish();
  int PollTimeout() const;
  // Whether this phase wants processes alive and giving signs of it; whether one is due to start
  // again at restart_at.
  bool MustRun() const;
  bool RestartsNow(const Running& process) const;
  bool AnyAlive() const;
  // Of its heartbeat.
  int CellOf(const Running& process) const;

  SupervisorOptions options_;
  const Nanos look_;  // the longest time between two looks at everything
  const AttendedClock clock_;
  ipc::UniqueFd signals_;
  std::vector<Running> processes_;
  Phase phase_ = Phase::kRunning;
  std::optional<Nanos> phase_deadline_;
  bool told_to_stop_ = false;  // the coordinator that runs now
  bool ready_ = false;
  bool orphaned_ = false;
  OomWatch oom_;
  absl::Status result_;
};

}  // namespace harmony::client
