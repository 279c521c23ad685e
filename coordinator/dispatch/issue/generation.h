#pragma once

// The issuing engine of one generation: from the frontier to a stream of commands. See dispatcher.h
// for what it does. It has no rules of its own but which steps are added, when a state is saved,
// and how the parts below, each with one concern, follow each other.
//
// Owner: Dispatcher; one generation at a time. Single-threaded. Invariant: the stream is a function
// of plan, costs and records; completions and the window only pace it. PURE.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/gradient_times.h"
#include "common/plan/arena_layout.h"
#include "coordinator/dispatch/costs/duration_memo.h"
#include "coordinator/dispatch/graph/step_builder.h"
#include "coordinator/dispatch/graph/step_progress.h"
#include "coordinator/dispatch/graph/work_graph.h"
#include "coordinator/dispatch/issue/command_writer.h"
#include "coordinator/dispatch/issue/dispatcher.h"
#include "coordinator/dispatch/issue/modelled_clock.h"
#include "coordinator/dispatch/issue/outstanding_commands.h"
#include "coordinator/dispatch/issue/queue_heads.h"
#include "coordinator/dispatch/memory/arena_records.h"
#include "coordinator/dispatch/memory/device_memory.h"
#include "coordinator/dispatch/memory/gradient_slots.h"
#include "coordinator/dispatch/memory/kept_layout.h"
#include "coordinator/dispatch/memory/memory_admission.h"
#include "coordinator/recovery/frontier.h"

namespace harmony::dispatch {

enum class Saving {
  kAsPlanned,  // after every `save_steps` steps
  kNotNow,     // not before the end: the last checkpoint could not be written
  kNext,       // after the next step that allows it, whatever its number
};

// What stays the same for all generations of a job; owned by the dispatcher.
struct JobContext {
  const model::ModelSpec& model;
  const plan::Plan& plan;
  const CostModel& costs;
  DispatchOptions options;
  plan::ArenaLayout layout;
  KeptLayout kept;
  command::ObjectTableLayout table;
  int64_t end_step;       // lowered by a stop
  int64_t saved_version;  // newest checkpoint known to be complete; -1: none
  bool resumed = false;   // generations before this one have run
  Saving saving = Saving::kAsPlanned;
};

class Generation {
 public:
  Generation(JobContext& job, recovery::Frontier frontier,
             absl::Span<const command::ObjectView> records);

  absl::Status Begin();
  absl::Status Issue(std::vector<command::Command>& commands);
  absl::Status RunDry(DryRunTimes& times);
  void OnLaneProgress(int lane, uint64_t value);
  void Stop();

  int64_t completed_steps() const { return progress_.completed(); }
  bool done() const;
  const command::Command* Find(int lane, uint64_t value) const {
    return outstanding_.Find(lane, value);
  }
  Bytes PeakBytes(int device) const { return memory_[device].peak() + job_.kept.bytes(device); }
  const GradientRing& ring() const { return gradient_slots_.ring(); }

 private:
  // What is added to the graph.
  absl::Status AppendSteps();
  absl::Status AppendStep(int64_t step);
  bool CheckpointDue(int64_t step) const;  // after this step
  bool CheckpointUnderWay() const;
  void AddCheckpoint(int64_t step);

  // What is issued next.
  // The queue whose head is; -1: nothing is left.
  absl::StatusOr<int> NextQueue();
  Node& HeadOf(int queue) { return graph_.node(graph_.queue(queue).front()); }
  const Node& HeadOf(int queue) const { return graph_.node(graph_.queue(queue).front()); }
  // The way of an output to a consumer on another device: of a send whose turn has come.
  WayTimes TimesOfWays(const Node& send);
  void GoDirect(Node& send);
  void GoByHost(Node& send);
  const WayDurations& DurationsOfWays(const Node& send);
  void Drop(NodeId id);
  void Resolved(Node& node);
  absl::Status Stuck() const;

  // Issuing it.
  void IssueHead(int queue, std::vector<command::Command>& commands);
  // All but what it waits for; what it has to wait for besides `node.deps` and the users of its
  // memory is added to `users`.
  void WriteHead(const Node& node, Users& users, command::Command& command);
  void FillWaits(const Node& node, Users& users, command::Command& command) const;
  // As modelled: takes the head off its queue, whose lane is free for it when `users` have
  // finished.
  void Issued(int queue, const Users& users, Nanos duration);
  // Of a task that begins at `begin`: how long it waits, on its way, for buffers of gradients.
  Nanos StallOf(const Node& node, Nanos begin, Nanos duration) const;
  // The device that a boundary tensor is copied to from another one; -1: no such copy.
  int PeerOf(const Node& node) const;
  // Of a dry run.
  Nanos DurationOf(const Node& node, Users& users);

  JobContext& job_;
  const model::ModelSpec& model_;
  const plan::Plan& plan_;
  recovery::Frontier frontier_;
  const command::LaneTable lane_table_;
  const int update_lane_;

  const QueueTable queues_;
  WorkGraph graph_;
  std::vector<DeviceMemory> memory_;  // by device
  GradientSlots gradient_slots_;
  MemoryAdmission admission_;
  ModelledClock clock_;
  QueueHeads heads_;
  StepProgress progress_;
  ArenaRecords records_;
  StepBuilder builder_;
  CommandWriter writer_;
  OutstandingCommands outstanding_;
  DurationMemo durations_;
  const model::GradientTimes gradient_times_;

  std::vector<int64_t> resumed_steps_;
  int64_t last_host_step_ = -1;       // highest step of which a host_compute command was issued
  std::vector<int64_t> checkpoints_;  // steps after which a checkpoint is in the graph
  uint64_t next_id_ = 1;
  int held_back_ = -1;  // the queue that is next, until its lane may have more outstanding
};

}  // namespace harmony::dispatch
