#pragma once

// Where gradients go in the arena: to a slot of their own (ArenaLayout), or, with eager updates, to
// their backward group's piece of the ring. A piece has a slot for each of the group's references,
// the last first, as they are updated, which holds its gradients of all parts, one after the other.
// Pieces are given in the order of the groups, when a shard of the group first has something to
// put there; a slot is given back when its block's update has been issued.
//
// Owner: Generation, which says when tasks and updates have been issued. Single-threaded.
// Invariant: a group whose gradients all have slots of their own never asks for a piece. PURE.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/plan/arena_layout.h"
#include "coordinator/dispatch/graph/work_graph.h"
#include "coordinator/dispatch/memory/gradient_ring.h"
#include "coordinator/recovery/frontier.h"

namespace harmony::dispatch {

class GradientSlots {
 public:
  // All must outlive it.
  GradientSlots(const model::ModelSpec& model, const plan::Plan& plan,
                const plan::ArenaLayout& layout, const WorkGraph& graph);

  // Gradients that an earlier generation committed, and whose updates of this step are still to
  // come, keep their places, and those that are missing beside them take theirs in the same piece:
  // of a block whose update was not issued the slot is still there.
  void Pin(const recovery::Frontier& frontier, const recovery::StepWork& work);
  // The groups of a step that was added will need pieces. `executions`: by backward group, those
  // that run.
  void Request(const recovery::StepWork& work, const std::vector<std::vector<int64_t>>& executions);
  // What is asked for steps from `step` on.
  void CancelFrom(int64_t step);

  // Of a kGradientOut: its slot has been given; where it is; whom its writer waits for (null:
  // nobody).
  bool IsGiven(const Node& node) const;
  Bytes SlotOf(const Node& node) const;  // REQUIRES: IsGiven
  const Users* WaitsOf(const Node& node) const;
  // Nothing more is copied of the node's loss slots, or of its gradient, on the device.
  bool IsOfLastPart(const Node& node, const GroupExecution& execution) const;

  // A task or an update was issued. True when pieces were given thereby.
  bool AfterCompute() { return Grant(); }
  bool AfterUpdate(const Node& node);

  bool waiting() const { return !requests_.empty(); }
  const GradientRing& ring() const { return ring_; }

 private:
  // A backward group's piece.
  struct Piece {
    std::vector<Bytes> slots;  // where they begin
    Users waits;               // for the first to write into one
    int updates_left = 0;      // that read from it; 0: it is not held
  };
  // A group that has no piece yet.
  struct PieceRequest {
    int64_t step = 0;
    int group = 0;
    std::vector<int64_t> executions;  // of its shards
  };

  bool Grant();
  // The tasks of a part have been issued: gradients are to be copied.
  bool IsDue(const PieceRequest& request) const;
  // Blocks whose gradients a group holds in the ring, and whose update is to come.
  int BlocksInRing(int backward_group, const std::vector<bool>& updates) const;
  // A gradient of one part, where it passes through the ring; else 0.
  Bytes RingBytes(int reference) const;
  // Where an earlier generation put a group's gradients of this step, if any is still there.
  std::optional<Bytes> PieceInUse(const recovery::Frontier& frontier, int backward_group,
                                  int64_t step) const;

  const model::ModelSpec& model_;
  const plan::Plan& plan_;
  const plan::ArenaLayout& layout_;
  const WorkGraph& graph_;
  GradientRing ring_;
  std::vector<Piece> pieces_;              // by backward group
  std::vector<plan::Indices> references_;  // by backward group, then by slot
  std::vector<std::vector<Bytes>> sizes_;  // of the slots
  std::deque<PieceRequest> requests_;      // in the order of the groups
  int64_t pinned_step_ = -1;
};

}  // namespace harmony::dispatch
