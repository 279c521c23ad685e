#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/command/command.h"
#include "common/plan/machine.h"
#include "common/runtime/attached_job.h"
#include "common/runtime/lane_executor.h"
#include "common/runtime/pacer.h"
#include "worker/device/compute_device.h"
#include "worker/device/device_backend.h"
#include "worker/layers/layer_runner.h"

namespace harmony::worker {

// The compute of one device: its memory, split by the plan into bindings and workspace, and the
// layers of the job that runs. It binds the offsets of commands to device addresses and hands them
// to the LayerRunner; how memory is reached and layers compute is up to what device_backends.h
// chooses.
//
// SetUpJob, EndJob come from the service's thread and REQUIRE that the compute lane is idle; Run
// comes from the compute lane's thread; stats from any.
class DeviceWorker {
 public:
  // FailedPrecondition: the backend has another size of memory than the device.
  static absl::StatusOr<std::unique_ptr<DeviceWorker>> Create(
      const plan::DeviceSpec& device, std::unique_ptr<DeviceBackend> backend);
  ~DeviceWorker();

  // Builds the job's layers and makes what the resident part leaves of the device's memory their
  // workspace. The same job again is a fresh start of it; another one replaces it. InvalidArgument
  // when the plan does not fit the device.
  absl::Status SetUpJob(const runtime::AttachedJob& job);
  void EndJob();

  // Runs one compute task, which waits by `await` for buffers of gradients that are not free yet,
  // or for sums of other devices (ComputeTask::gradient_waits; a task without them needs none).
  // Errors name step (from 1), layers and microbatch. InvalidArgument: a binding is missing or lies
  // outside the resident part; else see LayerRunner.
  absl::Status Run(const command::Command& command, const runtime::AwaitSemaphore& await = {});

  struct Stats {
    Bytes workspace;       // in use
    Bytes workspace_peak;  // since the job was set up
    uint64_t paced = 0, overruns = 0;
  };
  Stats stats() const;

  // The device as the job that is set up has it; null without a job. For the compute lane's thread.
  ComputeDevice* device() const;

 private:
  struct Job;
  class Waits;

  DeviceWorker(const plan::DeviceSpec& device, std::unique_ptr<DeviceBackend> backend);

  absl::Status RunTask(const command::ComputeTask& task, Waits& waits);
  absl::StatusOr<GroupBinding> Bind(const command::ComputeTask& task) const;
  Nanos ModelledDuration(const command::Command& command, const command::ComputeTask& task) const;

  const plan::DeviceSpec device_;
  const std::unique_ptr<DeviceBackend> backend_;
  runtime::Pacer pacer_{runtime::PacedWork::kCompute};
  mutable Mutex mutex_;  // guards the pointer job_, for stats
  std::unique_ptr<Job> job_;
};

}  // namespace harmony::worker
