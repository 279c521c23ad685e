#pragma once

// One job on a simulated machine: the real job runner, dispatcher and lane queues, with modelled
// processes, messages and durations under a virtual clock, and faults from a seed. Lanes that
// share a resource take turns, in the order in which their commands start. Every run
// with the same arguments is the same. PURE.
//
// What is checked, all the time: every read finds exactly the content it expects, no range is
// written while another command uses it, every (reference, microbatch) is counted once and in order
// in its gradient, updates find all their gradients, steps complete in order with their scalars in
// place, nothing hangs, and at the end every parameter has all updates and a checkpoint of it
// exists.

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/runner/job_runner.h"
#include "tests/sim/simulator/seen_faults.h"

namespace harmony::sim {

struct SimOptions {
  uint64_t seed = 0;
  int64_t first_step = 0, end_step = 2, save_steps = 0;
  int window = 64;
  std::set<int> worker_copies;  // devices: see RunnerOptions
  // What happens to random processes, the coordinator among them, spread over `fault_events`
  // events.
  int kills = 0;
  // They do nothing for a while (SIGSTOP), and then go on where they were, if nobody has killed
  // them for it: the coordinator at its deadlines, or the launcher, which sees that their heartbeat
  // stands still. The coordinator's own deadlines stand still while it does.
  int stops = 0;
  int hangs = 0;  // stops without end
  // Streams that break though both ends live.
  int stream_losses = 0;
  // Commands of the host's files, and set-ups, that fail for want of something outside, which is
  // there soon.
  int refusals = 0;
  // Commands of any lane that fail and may be tried again (Aborted).
  int failures = 0;
  int64_t fault_events = 1000;
  // Processes are told the job when they attach, and are ready some time later; else at once.
  bool set_up = false;
  bool jitter = false;  // durations between half and twice the modelled; messages late at random
  Nanos message_delay = Nanos(50'000);  // the longest, with jitter
  int64_t stop_at_event = -1;           // StopRequested then
  bool check_derivable = false;         // after each event: what is left of the step can be derived
  bool keep_timeline = false, keep_recording = false;
};

struct ExecutedCommand {
  int lane = 0;
  Nanos begin, end;  // from when all it waits for is there; a wait for the link included
  command::Command command;
};

struct SimResult {
  absl::Status status;  // Internal: an invariant was broken (the message says where)
  Nanos finished;
  int64_t events = 0;
  uint32_t generations = 0;
  int64_t completed_steps = 0;
  SeenFaults seen;
  std::array<int64_t, 8> moved_bytes{};  // by TrafficClass; over CPU-GPU links only
  std::vector<Nanos> step_ends;          // when the coordinator knew, from the first step on
  std::vector<Bytes> peak_resident;      // by device
  std::vector<ExecutedCommand> timeline;
  std::vector<std::pair<Nanos, runner::Event>> recording;  // what the (last) job runner was told
  std::vector<std::string> actions;  // and what it answered, one text an event
};

SimResult Simulate(const model::ModelSpec& model, const plan::Plan& plan,
                   const dispatch::CostModel& costs, const SimOptions& options);

}  // namespace harmony::sim
