#pragma once

// Runs the lanes of one process (swapper, worker, host worker): one thread a lane, strict FIFO.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/units.h"
#include "common/command/command.h"
#include "common/runtime/lane_semaphores.h"

namespace harmony::runtime {

// When a command came and when its work ran; CLOCK_MONOTONIC. `start` is after its waits were
// satisfied.
struct CompletedCommand {
  uint64_t value = 0;
  Nanos received, start, end;
};

// What happened on one lane since the last report. `completed` ascends without gaps; its last value
// is the lane's progress.
struct LaneReport {
  uint32_t generation = 0;
  uint32_t lane = 0;
  std::vector<CompletedCommand> completed;
  // Set when command `failed_value` failed; the lane runs nothing more in this generation.
  absl::Status failure;
  uint64_t failed_value = 0;
};

// Waits until a semaphore has come so far. Aborted: the generation is over.
using AwaitSemaphore = std::function<absl::Status(const command::SemaphoreWait&)>;

// Does the work of one command, whose header's waits are over; what else it waits for, it waits for
// itself. OK means it is complete and committed, so it may be signalled.
using LaneBody = std::function<absl::Status(const command::Command&, const AwaitSemaphore&)>;

struct LaneDefinition {
  uint32_t lane = 0;  // index of LaneTable, and of its semaphore
  std::string name;   // of the thread; at most 15 characters are shown
  LaneBody body;
};

// For each command: waits for its semaphores, runs the lane's body, signals the lane's semaphore
// with the command's value. A body that fails, with whatever code, is not signalled, is reported
// and stops its lane, so nothing that depends on it can run.
//
// Owner: a process's service; the calls below come from one thread at a time (the one that reads
// the attach stream). Bodies run on the lanes' threads. The sink runs on a thread of its own and
// gets all reports of a lane in order; it may be slow without delaying a lane.
//
// Generations: commands are accepted between StartGeneration(g) and the next Quiesce only, and of
// generation g only; all others are dropped.
class LaneExecutor {
 public:
  using Sink = std::function<void(std::vector<LaneReport>)>;

  struct Options {
    // A report leaves at once when none was sent for this long, else as soon as that is the case.
    Nanos report_interval = Millis(1);
    const Clock* clock = &MonotonicClock();
  };

  // `semaphores` must outlive the executor. The bodies may be called until Quiesce returned.
  LaneExecutor(std::vector<LaneDefinition> lanes, LaneSemaphores* semaphores, Sink sink,
               Options options);
  LaneExecutor(std::vector<LaneDefinition> lanes, LaneSemaphores* semaphores, Sink sink)
      : LaneExecutor(std::move(lanes), semaphores, std::move(sink), Options{}) {}
  ~LaneExecutor();  // quiesces
  LaneExecutor(const LaneExecutor&) = delete;
  LaneExecutor& operator=(const LaneExecutor&) = delete;

  // Lanes accept commands of `generation`, values from 1. FailedPrecondition when it is not above
  // every generation started before, or when the executor has not been quiesced since the last.
  absl::Status StartGeneration(uint32_t generation);

  // Appends commands to their lanes, in order. Those of another generation are dropped. A command
  // of a lane that is not here, or out of sequence, fails its lane (or all, if it has none here).
  void Enqueue(uint32_t generation, std::vector<command::Command> commands);

  // The first part of Quiesce, which is to follow: from now on nothing is signalled or reported, so
  // a body that is told to stop may return anything.
  void Cancel() { cancelled_.store(true); }

  // Drops what is queued, ends waits, lets running bodies finish without signalling, and returns
  // when every lane is idle and no sink call is under way; reports not yet handed out are dropped.
  // Idempotent.
  void Quiesce();

  // 0 when quiesced.
  uint32_t generation() const { return generation_.load(std::memory_order_relaxed); }

 private:
  struct LaneState;

  void RunLane(LaneState* lane);
  absl::Status RunCommand(const LaneState& lane, uint32_t generation,
                          const command::Command& command, CompletedCommand* completed, bool* over);
  void RunReporter();
  void ReportCompleted(uint32_t lane, uint32_t generation, const CompletedCommand& completed);
  void ReportFailure(uint32_t lane, uint32_t generation, uint64_t value,
                     const absl::Status& failure);
  LaneReport& PendingReport(uint32_t lane, uint32_t generation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(report_mutex_);
  void FailLane(LaneState* lane, uint64_t value, const absl::Status& failure);
  LaneState* FindLane(uint32_t lane);

  LaneSemaphores* const semaphores_;
  const Sink sink_;
  const Options options_;
  std::vector<std::unique_ptr<LaneState>> lanes_;

  std::atomic<uint32_t> generation_{0};
  std::atomic<bool> cancelled_{true};  // true from Quiesce to StartGeneration
  uint32_t last_generation_ = 0;       // owner's thread only

  Mutex report_mutex_;
  CondVar report_ready_, report_idle_;
  std::vector<LaneReport> pending_ ABSL_GUARDED_BY(report_mutex_);  // at most one a lane
  bool reporting_ ABSL_GUARDED_BY(report_mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(report_mutex_) = false;
  std::thread reporter_;
};

}  // namespace harmony::runtime
