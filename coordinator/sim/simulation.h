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
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/runner/job_runner.h"

namespace harmony::sim {

struct SimOptions {
  uint64_t seed = 0;
  int64_t first_step = 0, end_step = 2, save_steps = 0;
  int window = 64;
  // Kills of random processes (the coordinator among them), spread over `fault_events` events.
  int kills = 0;
  int64_t fault_events = 1000;
  // Hangs of random processes: they neither run nor answer until a deadline has them killed.
  int hangs = 0;
  // Commands of the host's files that fail for want of something outside, which is there soon.
  int refusals = 0;
  bool jitter = false;  // durations between half and twice the modelled; messages late at random
  Nanos message_delay = Nanos(50'000);  // the longest, with jitter
  int64_t stop_at_event = -1;           // StopRequested then
  bool check_derivable = false;         // after each event: what is left of the step can be derived
  bool keep_timeline = false, keep_recording = false;
};

struct TimelineEntry {
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
  std::array<int64_t, 8> moved_bytes{};  // by TrafficClass; over CPU-GPU links only
  std::vector<Nanos> step_ends;          // when the coordinator knew, from the first step on
  std::vector<Bytes> peak_resident;      // by device
  std::vector<TimelineEntry> timeline;
  std::vector<std::pair<Nanos, runner::Event>> recording;  // what the (last) job runner was told
  std::vector<std::string> actions;  // and what it answered, one text an event
};

SimResult Simulate(const model::ModelSpec& model, const plan::Plan& plan,
                   const dispatch::CostModel& costs, const SimOptions& options);

}  // namespace harmony::sim
