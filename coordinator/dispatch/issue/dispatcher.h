#pragma once

// Turns a plan into commands, ahead of time. PURE: the same code runs under the real runtime and
// under the simulator's virtual clock.
//
// What it does. For each step it builds the graph of what is left to do (all of it, or after a
// fault what the records do not show as done), keeps not yet issued nodes in a FIFO per lane (and
// sums in one more: QueueTable), and issues, of all heads that can be issued, the one with the
// earliest modelled start: its dependencies have been *issued*, and memory is assigned to it.
// Memory is assigned in issue order: a slot is free for a later command once its last readers have
// been issued; the new command then waits for their semaphores. So the stream of commands is a
// function of plan and records only; completions merely pace it (at most `window` commands
// outstanding per lane, two steps in flight).
//
// Owner: JobRunner (or a test). Single-threaded.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/command/command.h"
#include "common/model/model_spec.h"
#include "common/plan/lane_resources.h"
#include "common/plan/plan.h"

namespace harmony::dispatch {

// Modelled durations; the simulator and deadlines use them, real results never depend on them.
class CostModel {
 public:
  virtual ~CostModel() = default;
  // Of a command that has what carries it out for itself.
  virtual Nanos Duration(const command::Command& command) const = 0;
  virtual plan::CoreSharing Cores() const { return {}; }
};

struct DispatchOptions {
  int64_t first_step = 0;  // steps below are in the parameters already
  int64_t end_step = 0;    // runs steps [first_step, end_step)
  int64_t save_steps = 0;  // 0: only at the end (and when asked by StopAfterStep)
  int window = 64;         // commands outstanding per lane
};

// A run by the modelled times alone.
struct DryRunTimes {
  std::vector<Nanos> step_ends;  // of the last update, by step
  Nanos busiest;                 // in the last step: of a resource, what its lanes take of it
  int64_t commands = 0;
};

class Dispatcher {
 public:
  // `model`, `plan` and `costs` must outlive it.
  Dispatcher(const model::ModelSpec& model, const plan::Plan& plan, const CostModel& costs,
             DispatchOptions options);
  ~Dispatcher();

  // Forgets every device and all commands, derives the frontier from the records of the segment
  // (indices of ObjectTableLayout) and starts anew; semaphores of the new generation stand at zero.
  // Works on an empty table as well (then kInitialize comes first). Internal when the records
  // contradict each other (names the object).
  absl::Status BeginGeneration(uint32_t generation, absl::Span<const command::ObjectView> records);

  // All commands up to `value` of a lane have completed. Call NextCommands afterwards.
  void OnLaneProgress(int lane, uint64_t value);

  // Everything that can be issued now, in issue order. ResourceExhausted when nothing can be
  // issued, nothing is outstanding and the job is not done: the plan does not fit; the message
  // names device, bytes missing and what asked for them.
  absl::StatusOr<std::vector<command::Command>> NextCommands();

  // Instead of NextCommands and OnLaneProgress: issues all steps in the same order with the same
  // memory, each command completing as modelled, without writing the commands down. (Of commands
  // that want a link at one time it does not always know which comes first.) REQUIRES: a new
  // generation on an empty table; a command's duration depends on nothing but its lane, its size
  // and, of a task, its layers, its samples and whether it sets, adds up or stores gradients.
  absl::StatusOr<DryRunTimes> DryRun();

  // No step after `step_index` is started; a checkpoint is written after it. Idempotent, only ever
  // lowers the end. Steps already issued are finished.
  void StopAfterCurrentStep();

  // The checkpoint after `step` could not be written: the generations to come go on without it, and
  // without any other, until SaveNext. False: nothing can go on without it, for it is the last.
  bool PutOffCheckpoint(int64_t step);
  // A checkpoint is written after the next step that has not been issued yet.
  void SaveNext();

  // First step whose updates have not all completed. Scalars of steps below are final in the
  // segment.
  int64_t completed_steps() const;
  // All steps, checkpoints included, have completed.
  bool done() const;

  // The command behind (lane, value), while it is outstanding; null otherwise. For reports.
  const command::Command* Find(int lane, uint64_t value) const;

  // Highest use so far. Device index -1: the dynamic part of the arena.
  Bytes PeakBytes(int device) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace harmony::dispatch
