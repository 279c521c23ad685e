#pragma once

// The life of a swapper, worker or host worker on its stream with the coordinator: messages in,
// lanes driven, reports out.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/command/command.h"
#include "common/runtime/attached_job.h"
#include "common/runtime/lane_executor.h"
#include "common/runtime/pulse.h"

namespace harmony::v1 {
class DeviceStats;
}  // namespace harmony::v1

namespace harmony::runtime {

// Memory of the process, for DeviceStats.
void FillProcessStats(v1::DeviceStats* stats);

enum class AttachedRole { kSwapper, kHostWorker, kWorker };

// What a kind of process does between the messages. Calls come from one thread at a time, and, but
// for Cancel, only while the lanes are idle; Observe comes from a timer's thread, FillStats from
// any, at any time.
class AttachedHandler {
 public:
  virtual ~AttachedHandler() = default;
  // A job starts, or (after the coordinator's restart) goes on. Another job's state is replaced.
  virtual absl::Status SetUpJob(const AttachedJob& job) = 0;
  virtual void EndJob() = 0;
  // Nobody wants the results of what runs any more: what takes seconds had better return soon.
  // Until the next PrepareGeneration.
  virtual void Cancel() {}
  // Before a generation's first command.
  virtual absl::Status PrepareGeneration() { return absl::OkStatus(); }
  // Before the timer's FillStats: time for what takes a while to find out.
  virtual void Observe() {}
  virtual void FillStats(v1::DeviceStats* stats) = 0;
};

struct AttachedOptions {
  std::string socket_path;
  AttachedRole role = AttachedRole::kWorker;
  int device = 0;                            // kWorker
  int num_devices = 0;                       // of the machine, as --devices says
  std::string computes_on;                   // kWorker: see Hello in attach.proto
  uint32_t incarnation = 0, own_deaths = 0;  // as in ProcessEnvironment
  Nanos stats_interval = Seconds(1);
  // Is told of what no coordinator watches; outlives the process. Its first work, the start of the
  // program, ends with Start. Null: nobody watches.
  Pulse* pulse = nullptr;
};

// Runs from Start to Stop. When the stream breaks, the lanes are quiesced before it dials again.
// Messages of another generation than the running one are dropped.
class AttachedProcess {
 public:
  // `on_refused`: the coordinator does not want this process; called once, from the stream's
  // thread, which must not be the one to call Stop. `handler` and `semaphores` must outlive it.
  AttachedProcess(AttachedOptions options, std::vector<LaneDefinition> lanes,
                  LaneSemaphores* semaphores, AttachedHandler* handler,
                  std::function<void(const absl::Status&)> on_refused);
  ~AttachedProcess();  // stops

  void Start();
  // Lets running commands finish, drops the rest, ends the stream.
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace harmony::runtime
