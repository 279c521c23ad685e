#pragma once

// What the host worker does with the shared segment: initialisation, batches, step scalars, norms,
// clipping, updates, checkpoints. No gRPC, no torch.
//
// All tasks may be repeated after a kill at any instruction: a task whose result is committed
// already does nothing, one that was cut short starts over (or, kUpdate, goes on).

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/command/command.h"
#include "common/ipc/segment.h"
#include "common/runtime/attached_job.h"

namespace harmony::worker {

// A job as the host worker needs it (JobSetup).
struct HostJob : runtime::AttachedJob {
  // Set: initialisation and checkpoints stop soon, with Aborted and nothing committed. May be null.
  const std::atomic<bool>* cancelled = nullptr;
  int threads = 0;  // for updates and initialisation; 0: one for each usable core
};

class HostExecutor {
 public:
  // Opens the data, the weights' source and the checkpoint that the job names, checks them against
  // model and plan, and removes what an earlier host worker left half-written in output_dir.
  // `segment` holds the job's memory, and must outlive the executor.
  static absl::StatusOr<std::unique_ptr<HostExecutor>> Create(ipc::Segment& segment, HostJob job);
  ~HostExecutor();

  // Runs one task to its end, commit included. One thread per lane: tasks of host_compute (step
  // scalars, norms, clip, updates) in one, those of host_io (initialise, batches, checkpoints) in
  // another, at the same time. A result that is not finite is an error, and nothing is
  // committed then.
  absl::Status Execute(const command::HostTask& task, const command::CommandHeader& header);

 private:
  class Impl;
  explicit HostExecutor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace harmony::worker
