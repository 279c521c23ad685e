#pragma once

// The issuing engine of one generation: from the frontier to a stream of commands. See dispatcher.h
// for what it does; this is its state. PURE.

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/plan/arena_layout.h"
#include "coordinator/core/arena_records.h"
#include "coordinator/core/command_writer.h"
#include "coordinator/core/device_memory.h"
#include "coordinator/core/dispatcher.h"
#include "coordinator/core/frontier.h"
#include "coordinator/core/gradient_ring.h"
#include "coordinator/core/kept_layout.h"
#include "coordinator/core/link_clock.h"
#include "coordinator/core/step_builder.h"
#include "coordinator/core/work_graph.h"

namespace harmony {

// What stays the same for all generations of a job; owned by the dispatcher.
struct JobContext {
  const ModelSpec& model;
  const Plan& plan;
  const CostModel& costs;
  DispatchOptions options;
  ArenaLayout layout;
  KeptLayout kept;
  ObjectTableLayout table;
  int64_t end_step;       // lowered by a stop
  int64_t saved_version;  // newest checkpoint known to be complete; -1: none
  bool resumed = false;   // generations before this one have run
};

class Generation {
 public:
  Generation(JobContext& job, Frontier frontier, absl::Span<const ObjectView> records);

  absl::Status Begin();
  absl::Status Issue(std::vector<Command>& commands);
  absl::Status Rehearse(Rehearsal& rehearsal);
  void OnLaneProgress(int lane, uint64_t value);
  void Stop();

  int64_t completed_steps() const { return completed_steps_; }
  bool done() const;
  const Command* Find(int lane, uint64_t value) const;
  Bytes PeakBytes(int device) const { return memory_[device].peak() + job_.kept.bytes(device); }
  const GradientRing& ring() const { return ring_; }

 private:
  struct LaneState {
    uint64_t issued = 0, completed = 0;
    Nanos free_at;                // modelled
    bool ready = false;           // the head can be issued, from `start` on
    NodeId blocked_on = kNoNode;  // it cannot before this has been issued
    int64_t checked = 0;          // it could not when changes_ stood at this
    Nanos start;
    std::deque<Command> outstanding;
    // When the last commands will finish, as modelled; those before have done so long ago.
    static constexpr uint64_t kRecent = 1024;
    std::vector<Nanos> finishes = std::vector<Nanos>(kRecent);  // by value, modulo their number

    void SetFinish(Nanos at) { finishes[issued % kRecent] = at; }
    Nanos FinishOf(uint64_t value) const {
      return issued - value < kRecent ? finishes[value % kRecent] : Nanos();
    }
  };
  // A backward group's piece of the gradient ring: its gradients of one replica after those of the
  // other.
  struct RingGrant {
    bool held = false;
    Bytes begin;
    Users waits;           // for the first to write into it
    int updates_left = 0;  // that read from it
  };
  // A group that has no piece yet.
  struct RingRequest {
    int64_t step = 0;
    int group = 0;
    std::vector<int64_t> visits;  // of its shares
  };
  struct StepCount {
    int64_t step = 0;
    int nodes_left = 0, updates_left = 0;
  };

  // Building.
  absl::Status AppendSteps();
  absl::Status AppendStep(int64_t step);
  bool CheckpointDue(int64_t step) const;  // after this step
  void PinGradients(const StepWork& work);
  void RequestRing(const StepWork& work);
  std::optional<Bytes> PieceInUse(int backward_group, int64_t step) const;
  int RingBlocks(int backward_group, const std::vector<bool>& updates) const;
  // Of gradients of one replica, those that pass through the ring.
  Bytes RingBytes(absl::Span<const int> uses) const;
  StepCount* CountOf(int64_t step);

  // Choosing.
  // Whose head is to be issued next; -1: nothing is left.
  absl::StatusOr<int> NextLane();
  int PickLane();
  bool Evaluate(const Node& node, LaneState& lane) const;
  bool HasMemory(const Node& node, Nanos& start) const;
  void CollectUsers(const Node& node, Users& users) const;
  bool GradientHasSlot(const Node& node) const;
  void Settle(NodeId id);
  void Decide(NodeId id);
  void Drop(NodeId id);

  // Issuing.
  void IssueHead(int lane, std::vector<Command>& commands);
  void WriteHead(int lane, Users& users, Command& command);
  // As modelled; takes it off its lane.
  void Issued(int lane, Nanos start, Nanos duration);
  Nanos DurationOf(int lane, Users& users);
  void FinishSteps();
  void FillWaits(const Node& node, Users& users, Command& command) const;
  Bytes GradientSlot(const Node& node) const;
  // Of a visit of the backward: nothing more of its loss slots or gradients is copied.
  bool OfLastReplica(const Node& node, const Visit& visit) const;
  void AfterIssue(const Node& node);
  void AfterCompute(const Node& node);
  void AfterUpdate(const Node& node);
  void ReleaseOutputs(Visit& visit);
  void Release(const Visit& visit, int64_t item, const Users& users);
  void GrantRing();
  bool NeedsRing(const RingRequest& request) const;
  absl::Status Stuck() const;
  Users UsersOf(const Node& node) const;

  JobContext& job_;
  const ModelSpec& model_;
  const Plan& plan_;
  Frontier frontier_;
  LaneTable lane_table_;
  WorkGraph graph_;
  std::vector<DeviceMemory> memory_;
  ArenaRecords records_;
  GradientRing ring_;
  StepBuilder builder_;
  CommandWriter writer_;

  std::vector<LaneState> lanes_;
  const std::vector<int> links_;                        // by lane: what carries it
  std::vector<LinkClock> link_clocks_;                  // by link
  std::vector<RingGrant> grants_;                       // by backward group
  std::deque<RingRequest> ring_queue_;                  // in the order of the groups
  std::deque<StepCount> steps_;                         // built, not completed
  std::deque<std::pair<int64_t, uint64_t>> finishing_;  // (step, value of its last update)
  std::vector<StepWork> works_;  // of steps that the records say something about
  std::vector<int64_t> resumed_steps_;
  int64_t next_step_ = 0;  // to be built
  int64_t completed_steps_ = 0;
  int64_t last_host_step_ = -1;       // highest step of which a host_compute command was issued
  std::vector<int64_t> checkpoints_;  // steps after which a checkpoint is in the graph
  // Counts whatever may let a lane's head be issued, other than that nodes are issued or dropped:
  // memory and decisions.
  int64_t changes_ = 1;
  uint64_t next_id_ = 1;
  int held_back_ = -1;  // the lane that is next, until it may have more outstanding
  // Rehearsals: the last duration of each kind of node, by lane and kind.
  struct LastDuration {
    int64_t visit = -2;
    int index = -1, edge = -1;
    Nanos duration;
  };
  std::vector<std::array<LastDuration, kNodeKinds>> last_durations_;
};

}  // namespace harmony
