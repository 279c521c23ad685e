#pragma once

// The coordinator's state and what happens to it: jobs one after the other, each carried out by a
// JobRun. Every method runs on the loop's thread (mailbox.h); slow work (allocating and reading
// gigabytes) runs on a thread of its own, which posts its result.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/attended_clock.h"
#include "common/ipc/segment.h"
#include "common/plan/machine.h"
#include "coordinator/service/jobs/admission.h"
#include "coordinator/service/jobs/job_registry.h"
#include "coordinator/service/mailbox.h"
#include "coordinator/service/processes/arena_fence.h"
#include "coordinator/service/processes/members.h"
#include "coordinator/service/replan/plan_changes.h"
#include "coordinator/service/run/job_run.h"
#include "coordinator/service/run/output_files.h"
#include "coordinator/service/run/progress.h"
#include "coordinator/service/run/timeline.h"

namespace harmony::v1 {
class FromProcess;
}  // namespace harmony::v1

namespace harmony::service {

class Coordinator {
 public:
  // `mailbox` runs the loop; `segment` must outlive this. Jobs that were submitted before
  // `jobs_since` (RFC 3339, UTC) are another's: they are named to who submits one, and not run.
  // Processes are held to deadlines by `clock`, less the time in which this process was stopped.
  Coordinator(plan::MachineSpec machine, ipc::Segment* segment, JobRegistry registry,
              Mailbox* mailbox, const Clock& clock, std::string jobs_since = "");
  ~Coordinator();

  // After construction: takes up the job that a predecessor was running.
  void Begin();
  void OnTick();
  // Stops the running job after the step in flight, with a checkpoint; calls `done` when that is
  // over.
  void Terminate(std::function<void()> done);

  // ---- Of the public service ----
  HostLimits Limits() const;
  // Makes the output directory ready and queues the job. The same run while it is queued or
  // running: its id.
  absl::StatusOr<std::string> Enqueue(AdmittedJob admitted, const std::string& yaml);
  absl::StatusOr<const store::JobRecord*> Cancel(const std::string& id);
  absl::StatusOr<const store::JobRecord*> Pause(const std::string& id);
  // `ready`: the record as MakeReadyToResume has left it.
  absl::StatusOr<const store::JobRecord*> Resume(const std::string& id,
                                                 const store::JobRecord& ready);
  absl::Status Watch(const std::string& id, Nanos interval, std::shared_ptr<ProgressStream> stream);
  // Ids of the ended jobs that are forgotten now; see JobRegistry::Prune.
  absl::StatusOr<std::vector<std::string>> Prune(const std::string& ended_before);
  // Of the running job or of one of the last that ran. Steps: as RecordTimeline.
  absl::StatusOr<RecordedTimeline> TimelineOf(const std::string& id, int64_t last_steps);
  JobRegistry& registry() { return registry_; }
  const plan::MachineSpec& machine() const { return machine_; }

  // ---- Of the attach service ----
  void OnHello(uint64_t session, const std::shared_ptr<ProcessLink>& link,
               const v1::FromProcess& message);
  void OnMessage(uint64_t session, const v1::FromProcess& message);
  void OnSessionClosed(uint64_t session);

 private:
  struct Prepared {
    explicit Prepared(store::JobRecord job) : record(std::move(job)) {}
    store::JobRecord
        record;         // with another plan, when the devices are others than those it was made for
    bool held = false;  // the segment held what was trained before this began
    bool fits = true;
    RunSetup setup;
    absl::Status status;
  };

  void OnAttached(const Member& member);
  void OnLost(const Member& member);
  store::JobRecord* current();  // of run_ or of what is being prepared
  void SetState(store::JobRecord& record, store::JobState state);
  void Background(std::function<void()> work);
  // What a waiting job tries, it tries at the next tick.
  void HurryTries();
  // A job that waits outside of a run, and was cancelled twice.
  const store::JobRecord* EndUnwritten(store::JobRecord& record);
  absl::StatusOr<const store::JobRecord*> RequestStop(const std::string& id,
                                                      store::StopIntent intent,
                                                      store::JobState at_once);

  bool IsOurs(const store::JobRecord& record) const { return record.submitted_at >= jobs_since_; }
  // The jobs of others that have not ended, for the log of `record`; one that wrote to the same
  // output_dir ends, for `record` goes on from there.
  void NameOthers(const store::JobRecord& record);
  void StartNext();
  // As users see it; deadline_clock_ is for what others are held to.
  static Nanos Now();
  // The first that is queued; before all others the one whose state the segment holds. May be null.
  store::JobRecord* NextJob();
  void DropRun();  // which keeps its timeline
  void ForgetRun();
  void Prepare(const store::JobRecord& record);
  // On a thread of its own.
  absl::Status SetUp(const HostLimits& limits, Prepared* prepared);
  void TakePlan(store::JobRecord& record, const store::JobRecord& planned);
  absl::Status LockOutput(const store::JobRecord& record);
  void OnPrepared(const std::shared_ptr<Prepared>& prepared);
  // The job could not begin. One that is `held` keeps what it has trained, which is in the segment
  // and may be nowhere else, and is tried again; so is another one that lacks something that may
  // come back. Else it fails.
  void CannotBegin(store::JobRecord& record, const absl::Status& status, bool held);
  // Of a job that was put off: once more, or not at all any more.
  void TryToBegin(store::JobRecord& record);
  bool IsToStop(const store::JobRecord& record) const {
    return record.stop != store::StopIntent::kNone || terminated_;
  }
  // Of one that has nothing to save.
  void EndUnbegun(store::JobRecord& record);
  RunEvents EventsOfRun();
  void OnStep(const StepMetrics& metrics);
  void OnRunStateChanged();
  void OnRunEnded(const absl::Status& status);
  // Of a run that ended well. False: not yet, something cannot be written.
  bool FinishRecord(store::JobRecord& record);
  bool FinishWell(store::JobRecord& record);
  void SettleStopped(store::JobRecord& record);
  void Fail(store::JobRecord& record, const absl::Status& status);
  // The run ends after the step in flight and a checkpoint, for this process is to end.
  void StopRun(store::JobRecord& record);
  // Between the end of a run and the next: everyone must have let go of the arena.
  void BeginRelease();
  void TryRelease();
  void Release();
  void OnReleased(const absl::Status& status);
  void NotifyWatchers(Nanos now);
  void NothingAwaited();
  // Who is missing: after a few seconds, then less and less often.
  void ReportAwaited(const store::JobRecord& record, const std::vector<runner::ProcessId>& awaited);

  const plan::MachineSpec machine_;
  const std::string jobs_since_;
  const AttendedClock deadline_clock_;  // looked at with every tick
  ipc::Segment* const segment_;
  JobRegistry registry_;
  std::map<int64_t, OutputDirLock> output_locks_;  // by number, of jobs that have not ended
  Mailbox* const mailbox_;
  Members members_;
  ArenaFence fence_;
  std::vector<Watcher> watchers_;

  // What is going on with the job at the head of the queue.
  enum class Phase {
    kIdle,       // nothing; the next queued job may start
    kPreparing,  // a thread reads checkpoints and allocates the arena
    kPutOff,     // it could not begin, or what the segment holds not go on; it is prepared again
                 // later
    kRunning,    // run_ is alive
    kLettingGo,  // run_ has ended; waits until nobody writes to the arena
    kReleasing,  // a thread gives the arena back
  };
  Phase phase_ = Phase::kIdle;
  int64_t current_ = 0;                 // number of that job
  runner::BackOff begin_tries_;         // of a job that is put off
  std::unique_ptr<JobRun> run_;         // kept after its end, for its timeline, until the next one
  std::unique_ptr<OutputFiles> files_;  // of run_, as long as that is there
  static constexpr size_t kTimelinesKept = 4;    // up to some 20 MB each
  std::deque<RecordedTimeline> past_timelines_;  // of runs before, the newest last
  uint32_t release_generation_ = 0;
  bool finish_when_quiet_ = false;  // the run ended well; its record is to say so
  Nanos phase_since_;               // by deadline_clock_
  std::thread background_;
  Nanos last_saved_;
  Nanos awaited_since_;  // since when, or since the last report, processes are missing
  Nanos awaited_pause_;  // until the next report
  PlanChanges changes_;  // of run_
  int64_t goes_on_ = 0;  // number of a job that goes on by another plan, before all others
  bool devices_touched_ = false;
  std::function<void()> terminated_;  // set: terminating
};

}  // namespace harmony::service
