#pragma once

// One job from attach to end: membership, generations, dispatch, recovery, as a state machine
// `events in -> actions out`. PURE. Two drivers: coordinator/service (real processes) and
// tests/sim/simulator (virtual clock).
//
// Life of a generation:
//   kGathering    waits until every process is attached (a swapper, a host worker, one worker a
//   device) kQuiescing    the generation word has been raised; survivors were asked to quiesce,
//   lost
//                 processes are being killed; waits for all answers and all (re-)attachments
//   kRunning      commands are out
//   kFinished / kFailed   final
//
// A lost process (stream broken, deadline expired) in kRunning or kQuiescing starts the next
// generation. So does a command that fails, unless the job is to blame (failure.h; non-finite, bad
// input): that ends it. Where a file, room on a disk or memory is missing, the next generation
// begins after a pause; or at once, without the checkpoint that could not be written.

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/dispatch/issue/dispatcher.h"

namespace harmony::runner {

enum class Role : uint8_t { kSwapper, kHostWorker, kWorker };
struct ProcessId {
  Role role = Role::kWorker;
  int device = 0;  // kWorker only
  auto operator<=>(const ProcessId&) const = default;
};
std::string DebugString(const ProcessId& process);
// The process that executes a lane. `worker_copies`: devices whose workers carry out their copies
// (DeviceSpec::worker_copies).
ProcessId OwnerOf(const command::Lane& lane, const std::set<int>& worker_copies);

// ---- Events ----
struct ProcessAttached {  // a new incarnation, or an old one that dialled in again (it has quiesced
                          // itself)
  ProcessId process;
  uint32_t incarnation = 0;
  uint32_t own_deaths = 0;  // incarnations before it that died by themselves, or hung
};
struct ProcessLost {  // its stream broke; the service kills it by pidfd and confirms its exit
                      // before re-attach
  ProcessId process;
  uint32_t incarnation = 0;
};
struct Quiesced {
  ProcessId process;
  uint32_t incarnation = 0;
  uint32_t generation = 0;
};
// The segment's records, read by the driver when action ReadRecords asked for them.
struct RecordsRead {
  uint32_t generation = 0;
  std::vector<command::ObjectView> records;
};
struct LaneProgress {
  uint32_t generation = 0;
  int lane = 0;
  uint64_t value = 0;
};
struct CommandFailed {
  uint32_t generation = 0;
  int lane = 0;
  uint64_t value = 0;
  absl::Status status;
};
struct Tick {};           // at least once a second: deadlines
struct StopRequested {};  // SIGTERM, cancel: finish the step, checkpoint, end
struct TryNow {};         // what is waited for may be there
using Event = std::variant<ProcessAttached, ProcessLost, Quiesced, RecordsRead, LaneProgress,
                           CommandFailed, Tick, StopRequested, TryNow>;

// ---- Actions, to be carried out in order ----
struct RaiseGeneration {  // compare-and-swap the word in the segment to this value
  uint32_t generation = 0;
};
struct AskQuiesce {  // to one process; it answers Quiesced
  ProcessId process;
  uint32_t generation = 0;
};
struct KillProcess {  // deadline expired
  ProcessId process;
  std::string reason;
};
struct ReadRecords {  // after everyone is quiet: prepare the generation's bank, read the table
  uint32_t generation = 0;
};
struct StartGeneration {  // tell every process to start lanes of this generation; precedes its
                          // commands
  uint32_t generation = 0;
};
struct Send {  // to one process
  ProcessId process;
  uint32_t generation = 0;
  std::vector<command::Command> commands;
};
struct StepCompleted {  // scalars of step index `step` are final in the segment
  int64_t step = 0;
};
struct JobEnded {
  absl::Status status;  // OK: finished (or stopped as asked)
};
struct Report {  // one line for logs and the progress view
  std::string text;
};
using Action = std::variant<RaiseGeneration, AskQuiesce, KillProcess, ReadRecords, StartGeneration,
                            Send, StepCompleted, JobEnded, Report>;

struct RunnerOptions {
  dispatch::DispatchOptions dispatch;
  std::set<int> worker_copies;    // devices: see OwnerOf
  uint32_t first_generation = 1;  // must be above every generation the segment has seen
  // Who has not answered for longer than this, plus ten times the modelled duration of what it may
  // be running, is killed.
  Nanos quiesce_deadline = Seconds(30);
  // A command that is the head of its lane with all waits satisfied for longer than this, plus ten
  // times its modelled duration, is reported and its process killed. Initialisation and checkpoints
  // have the time besides that a very slow disk needs for the model.
  Nanos command_deadline = Seconds(120);
  // Generations that one process may end without any progress between; then the job fails and says
  // which process it was. A process that was killed from outside is not to blame, however often.
  int max_generations_without_progress = 10;
  // More than one checkpoint is kept. A job that fails for what would happen again is saved first,
  // but not where that would take the place of the only other checkpoint: what fails may have gone
  // wrong some steps before.
  bool keeps_checkpoints = true;
};

class JobRunner {
 public:
  JobRunner(const model::ModelSpec& model, const plan::Plan& plan, const dispatch::CostModel& costs,
            const RunnerOptions& options);
  ~JobRunner();

  std::vector<Action> OnEvent(const Event& event, Nanos now);

  enum class State { kGathering, kQuiescing, kRunning, kFinished, kFailed };
  State state() const;
  // In kQuiescing: the next generation is not begun before what the last one lacked is tried again.
  bool waiting() const;
  uint32_t generation() const;
  const dispatch::Dispatcher& dispatcher() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace harmony::runner
