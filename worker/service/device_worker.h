#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ipc/fd_passing.h"
#include "common/plan/command.h"
#include "common/plan/machine.h"
#include "common/runtime/attached_job.h"
#include "common/runtime/pacer.h"
#include "worker/device/sim_allocator.h"
#include "worker/device/workspace.h"
#include "worker/models/layer_runner.h"

namespace harmony {

// The compute of one sim device: its memory, split by the plan into bindings and workspace, and the
// layers of the job that runs.
//
// SetUpJob, EndJob come from the service's thread and REQUIRE that the compute lane is idle; Run
// comes from the compute lane's thread; stats from any.
class DeviceWorker {
 public:
  // `region` is the whole memory of the device. Unimplemented for kinds other than sim.
  static absl::StatusOr<std::unique_ptr<DeviceWorker>> Create(const DeviceSpec& device,
                                                              MappedRegion region);
  ~DeviceWorker();

  // Builds the job's layers and gives LibTorch a workspace of what the resident part leaves of the
  // device's memory. The same job again is a fresh start of it; another one replaces it.
  // InvalidArgument when the plan does not fit the device.
  absl::Status SetUpJob(const AttachedJob& job);
  void EndJob();

  // Runs one compute task. Errors name step (from 1), layers and microbatch. InvalidArgument: a
  // binding is missing or lies outside the resident part; else see LayerRunner.
  absl::Status Run(const Command& command);

  struct Stats {
    Bytes workspace;       // in use
    Bytes workspace_peak;  // since the job was set up
    uint64_t paced = 0, overruns = 0;
  };
  Stats stats() const;

 private:
  struct Job;

  DeviceWorker(const DeviceSpec& device, MappedRegion region);

  absl::Status RunTask(const ComputeTask& task);
  absl::StatusOr<GroupBinding> Bind(const ComputeTask& task) const;
  Nanos ModelledDuration(const Command& command, const ComputeTask& task) const;

  const DeviceSpec device_;
  const MappedRegion region_;
  Pacer pacer_{PacedWork::kCompute};
  mutable std::mutex mutex_;  // guards the pointer job_, for stats
  std::unique_ptr<Job> job_;
  int threads_ = 0;  // LibTorch's, as set by the lane; 0: not yet
};

}  // namespace harmony
