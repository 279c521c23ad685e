// Choosing what to issue next, and issuing it.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/core/generation.h"

namespace harmony {

// ---- Choosing ----

Users Generation::UsersOf(const Node& node) const {
  Users users;
  users.Add(static_cast<uint32_t>(node.lane), node.value, node.finish);
  return users;
}

// The lane whose head has the earliest modelled start; -1 when no head can be issued.
int Generation::PickLane() {
  int best = -1;
  Nanos best_start;
  NodeId best_id = kNoNode;
  for (int index = 0; index < graph_.num_lanes(); ++index) {
    std::deque<NodeId>& queue = graph_.lane(index);
    LaneState& lane = lanes_[index];
    if (!lane.ready) {
      if (lane.blocked_on != kNoNode || lane.checked == changes_) continue;
      while (!queue.empty() && graph_.node(queue.front()).state == NodeState::kDropped) {
        queue.pop_front();
      }
      if (queue.empty()) continue;
      lane.ready = Evaluate(graph_.node(queue.front()), lane);
      lane.checked = changes_;
      if (!lane.ready) continue;
    }
    const Nanos start = std::max(lane.start, lane.free_at);
    if (best < 0 || start < best_start || (start == best_start && queue.front() < best_id)) {
      best = index;
      best_start = start;
      best_id = queue.front();
    }
  }
  return best;
}

bool Generation::Evaluate(const Node& node, LaneState& lane) const {
  lane.blocked_on = kNoNode;
  if (node.state == NodeState::kUndecided && node.kind != NodeKind::kEgress) return false;
  lane.start = Nanos();
  for (NodeId dep : node.deps) {
    if (graph_.Forgotten(dep)) continue;
    const Node& before = graph_.node(dep);
    if (before.state != NodeState::kIssued && before.state != NodeState::kDropped) {
      lane.blocked_on = dep;
      return false;
    }
    lane.start = std::max(lane.start, before.finish);
  }
  return HasMemory(node, lane.start);
}

bool Generation::HasMemory(const Node& node, Nanos& start) const {
  if (node.visit < 0) return true;
  const Visit& visit = graph_.visit(node.visit);
  const DeviceMemory& memory = memory_[visit.device];
  switch (node.kind) {
    case NodeKind::kLoadWeights:
      if (node.position >= visit.own_blocks) return true;  // in a place of its own
      if (!memory.admitted(visit.first_weight + node.position)) return false;
      break;
    case NodeKind::kTokensIn:
    case NodeKind::kLabelsIn:
    case NodeKind::kStashIn:
    case NodeKind::kInputIn:
    case NodeKind::kGradientIn:
      if (!memory.admitted(visit.in)) return false;
      break;
    case NodeKind::kCompute:
      if (!memory.admitted(visit.end_item - 1)) return false;
      break;
    case NodeKind::kGradientOut:
      if (!GradientHasSlot(node)) return false;
      break;
    case NodeKind::kEgress:
      if (node.state == NodeState::kUndecided) return true;
      break;
    default:
      return true;
  }
  Users users;
  CollectUsers(node, users);
  start = std::max(start, users.finish);
  return true;
}

// Whoever used before what the command is the first to write.
void Generation::CollectUsers(const Node& node, Users& users) const {
  if (node.visit < 0) return;
  const Visit& visit = graph_.visit(node.visit);
  const DeviceMemory& memory = memory_[visit.device];
  switch (node.kind) {
    case NodeKind::kLoadWeights:
      if (node.position >= visit.own_blocks) break;
      users.Merge(memory.waits(visit.first_weight + node.position));
      break;
    case NodeKind::kTokensIn:
    case NodeKind::kLabelsIn:
    case NodeKind::kStashIn:
    case NodeKind::kInputIn:
    case NodeKind::kGradientIn:
      if (node.position < visit.slots) users.Merge(memory.waits(visit.in));
      break;
    case NodeKind::kEgress: {
      const Visit& consumer = graph_.visit(visit.consumer);
      if (node.index < consumer.slots) {
        users.Merge(memory_[consumer.device].waits(consumer.in));
      }
      break;
    }
    case NodeKind::kCompute:
      if (node.position < visit.slots) users.Merge(memory.waits(visit.out));
      if (node.position > 0) break;
      for (int64_t item = visit.first_gradient; item < visit.in; ++item) {
        users.Merge(memory.waits(item));
      }
      break;
    case NodeKind::kGradientOut:
      if (!job_.layout.UseHasOwnGradientSlot(node.index)) users.Merge(grants_[visit.group].waits);
      break;
    default:
      break;
  }
}

bool Generation::GradientHasSlot(const Node& node) const {
  if (job_.layout.UseHasOwnGradientSlot(node.index)) return true;
  const int group = graph_.visit(node.visit).group;
  return std::none_of(ring_queue_.begin(), ring_queue_.end(), [&](const RingRequest& request) {
    return request.step == node.step && request.group == group;
  });
}

void Generation::Settle(NodeId id) {
  if (StepCount* count = CountOf(graph_.node(id).step)) --count->nodes_left;
  for (LaneState& lane : lanes_) {
    if (lane.blocked_on != id) continue;
    lane.blocked_on = kNoNode;
    lane.checked = 0;
  }
}

// An output goes from device to device when the consumer has its memory and a slot that is free, or
// that a task which is issued will free; else by way of the arena (the copy out is made anyway, for
// the stash or for eager updates). So no visit ever waits for a later one: a slow consumer does not
// hold up its producer's device, and nothing can lock up.
void Generation::Decide(NodeId id) {
  Node& egress = graph_.node(id);
  lanes_[egress.lane].ready = false;
  ++changes_;
  const Visit& consumer = graph_.visit(graph_.visit(egress.visit).consumer);
  const NodeId slot_user = egress.index >= consumer.slots
                               ? consumer.positions[egress.index - consumer.slots].compute
                               : kNoNode;
  const bool slot_free = slot_user == kNoNode || graph_.Settled(slot_user);
  const bool direct = slot_free && memory_[consumer.device].admitted(consumer.end_item - 1);
  if (direct) {
    egress.state = NodeState::kPending;
    if (slot_user != kNoNode) egress.deps.push_back(slot_user);
    Drop(egress.other_way_in);
    if (egress.other_way_out != kNoNode) Drop(egress.other_way_out);
    return;
  }
  graph_.node(egress.other_way_in).state = NodeState::kPending;
  if (egress.other_way_out != kNoNode) {
    graph_.node(egress.other_way_out).state = NodeState::kPending;
  }
  Drop(id);
}

void Generation::Drop(NodeId id) {
  Node& node = graph_.node(id);
  node.state = NodeState::kDropped;
  Settle(id);
  if (node.kind == NodeKind::kInputIn || node.kind == NodeKind::kGradientIn) return;
  Visit& visit = graph_.visit(node.visit);
  --visit.outs_left;
  ReleaseOutputs(visit);
}

// ---- Issuing ----

absl::StatusOr<int> Generation::NextLane() {
  for (;;) {
    HARMONY_RETURN_IF_ERROR(AppendSteps());
    const int index = PickLane();
    if (index < 0) return graph_.empty() ? absl::StatusOr<int>(-1) : Stuck();
    const NodeId id = graph_.lane(index).front();
    if (graph_.node(id).state != NodeState::kUndecided) return index;
    Decide(id);
  }
}

absl::Status Generation::Issue(std::vector<Command>& commands) {
  for (;;) {
    if (held_back_ < 0) {
      HARMONY_ASSIGN_OR_RETURN(held_back_, NextLane());
    }
    const int index = held_back_;
    if (index < 0) return absl::OkStatus();
    const LaneState& lane = lanes_[index];
    const Node& node = graph_.node(graph_.lane(index).front());
    const bool full = lane.issued - lane.completed >= static_cast<uint64_t>(job_.options.window);
    if (full || node.step > completed_steps_ + 1) return absl::OkStatus();
    held_back_ = -1;
    IssueHead(index, commands);
  }
}

void Generation::IssueHead(int index, std::vector<Command>& commands) {
  Users users;
  Command command;
  WriteHead(index, users, command);
  FillWaits(graph_.node(graph_.lane(index).front()), users, command);
  command.header.expected = job_.costs.Duration(command);
  Issued(index, std::max(lanes_[index].start, users.finish), command.header.expected);
  lanes_[index].outstanding.push_back(command);
  commands.push_back(std::move(command));
}

// All but what it waits for; what it has to wait for in addition to `node.deps` is in `users`.
void Generation::WriteHead(int index, Users& users, Command& command) {
  const Node& node = graph_.node(graph_.lane(index).front());
  command.header.id = next_id_++;
  command.header.lane = static_cast<uint32_t>(index);
  command.header.signal_value = lanes_[index].issued + 1;
  command.header.step = node.step;
  const bool recovery =
      std::find(resumed_steps_.begin(), resumed_steps_.end(), node.step) != resumed_steps_.end();
  writer_.WriteBody(node, node.kind == NodeKind::kGradientOut ? GradientSlot(node) : Bytes(0),
                    recovery, command, users);
  for (const SemaphoreWait& wait : users.waits) {
    users.finish = std::max(users.finish, lanes_[wait.semaphore].FinishOf(wait.value));
  }
}

void Generation::Issued(int index, Nanos start, Nanos duration) {
  LaneState& lane = lanes_[index];
  const NodeId id = graph_.lane(index).front();
  Node& node = graph_.node(id);
  node.value = ++lane.issued;
  node.finish = link_clocks_[links_[index]].Serve(std::max(start, lane.free_at), duration);
  node.state = NodeState::kIssued;
  lane.free_at = node.finish;
  lane.SetFinish(node.finish);
  lane.ready = false;
  lane.checked = 0;
  graph_.lane(index).pop_front();
  Settle(id);
  AfterIssue(node);
}

void Generation::FillWaits(const Node& node, Users& users, Command& command) const {
  CollectUsers(node, users);
  for (NodeId dep : node.deps) {
    if (graph_.Forgotten(dep)) continue;
    const Node& before = graph_.node(dep);
    if (before.state == NodeState::kDropped) continue;
    users.Add(static_cast<uint32_t>(before.lane), before.value, before.finish);
  }
  for (const SemaphoreWait& wait : users.waits) {
    if (wait.semaphore != static_cast<uint32_t>(node.lane)) command.header.waits.push_back(wait);
  }
  std::sort(command.header.waits.begin(), command.header.waits.end());
}

bool Generation::OfLastReplica(const Node& node, const Visit& visit) const {
  return visit.microbatches.back() / plan_.replica_microbatches() == node.replica;
}

Bytes Generation::GradientSlot(const Node& node) const {
  if (job_.layout.UseHasOwnGradientSlot(node.index)) {
    return job_.layout.Gradient(node.index, node.replica);
  }
  const Visit& visit = graph_.visit(node.visit);
  const absl::Span<const int> uses = visit.uses;
  return grants_[visit.group].begin + RingBytes(uses) * node.replica +
         RingBytes(uses.first(static_cast<size_t>(node.position)));
}

void Generation::AfterIssue(const Node& node) {
  if (lane_table_.LaneAt(node.lane).kind == LaneKind::kHostCompute) {
    last_host_step_ = std::max(last_host_step_, node.step);
  }
  switch (node.kind) {
    case NodeKind::kCompute:
      AfterCompute(node);
      break;
    case NodeKind::kEgress:
    case NodeKind::kKeep:
    case NodeKind::kStashOut:
    case NodeKind::kBoundaryOut: {
      Visit& visit = graph_.visit(node.visit);
      --visit.outs_left;
      visit.out_users.Add(static_cast<uint32_t>(node.lane), node.value, node.finish);
      ReleaseOutputs(visit);
      break;
    }
    case NodeKind::kLossOut: {
      const Visit& visit = graph_.visit(node.visit);
      if (OfLastReplica(node, visit)) Release(visit, visit.loss, UsersOf(node));
      break;
    }
    case NodeKind::kGradientOut: {
      const Visit& visit = graph_.visit(node.visit);
      if (OfLastReplica(node, visit)) {
        Release(visit, visit.first_gradient + node.position, UsersOf(node));
      }
      break;
    }
    case NodeKind::kUpdate:
      AfterUpdate(node);
      break;
    default:
      break;
  }
}

void Generation::AfterCompute(const Node& node) {
  Visit& visit = graph_.visit(node.visit);
  visit.out_users.Add(static_cast<uint32_t>(node.lane), node.value, node.finish);
  if (--visit.compute_left > 0) {
    GrantRing();
    return;
  }
  const Users users = UsersOf(node);
  for (int64_t item = visit.first_weight; item < visit.first_gradient; ++item) {
    Release(visit, item, users);
  }
  Release(visit, visit.in, users);
  ReleaseOutputs(visit);
  GrantRing();
}

void Generation::ReleaseOutputs(Visit& visit) {
  if (visit.compute_left == 0 && visit.outs_left == 0) {
    Release(visit, visit.out, visit.out_users);
    visit.outs_left = -1;  // once
  }
}

void Generation::Release(const Visit& visit, int64_t item, const Users& users) {
  memory_[visit.device].Release(item, users);
  memory_[visit.device].Admit();
  ++changes_;
}

void Generation::AfterUpdate(const Node& node) {
  if (StepCount* count = CountOf(node.step); count != nullptr && --count->updates_left == 0) {
    finishing_.emplace_back(node.step, node.value);
  }
  if (job_.layout.ring_bytes().count() == 0 || model_.blocks[node.index].uses.size() > 1) return;
  const int layer = model_.uses[model_.blocks[node.index].uses.front()].layer;
  for (size_t g = 0; g < grants_.size(); ++g) {
    if (!plan_.backward_groups[g].layers.contains(layer)) continue;
    RingGrant& grant = grants_[g];
    if (--grant.updates_left > 0) return;
    ring_.Release(grant.begin, UsersOf(node));
    grant.held = false;
    GrantRing();
  }
}

// The tasks of a replica have been issued: gradients are to be copied.
bool Generation::NeedsRing(const RingRequest& request) const {
  return std::any_of(request.visits.begin(), request.visits.end(), [&](int64_t id) {
    const Visit& visit = graph_.visit(id);
    const int issued = static_cast<int>(visit.microbatches.size()) - visit.compute_left;
    return issued >= plan_.replica_microbatches();
  });
}

// Pieces of the ring are given in the order of the groups.
void Generation::GrantRing() {
  while (!ring_queue_.empty()) {
    const RingRequest& request = ring_queue_.front();
    RingGrant& grant = grants_[request.group];
    if (!NeedsRing(request) || grant.held) return;
    int blocks = 0;
    const std::vector<int>& uses = graph_.visit(request.visits.front()).uses;
    for (int use : uses) blocks += job_.layout.UseHasOwnGradientSlot(use) ? 0 : 1;
    std::optional<GradientRing::Piece> piece = ring_.Take(RingBytes(uses) * plan_.replicas);
    if (!piece) return;
    grant.held = true;
    grant.begin = piece->begin;
    grant.waits = std::move(piece->waits);
    grant.updates_left = blocks;
    ring_queue_.pop_front();
    ++changes_;
  }
}

absl::Status Generation::Stuck() const {
  std::string text = "nothing can be issued";
  for (size_t d = 0; d < memory_.size(); ++d) {
    const DeviceMemory& memory = memory_[d];
    if (memory.items() == 0 || memory.admitted(memory.items() - 1)) continue;
    absl::StrAppend(&text, "; device ", d, " holds ", FormatBytesExact(memory.held()), " of ",
                    FormatBytesExact(memory.resident()), " and waits for more");
  }
  if (!ring_queue_.empty()) {
    absl::StrAppend(&text, "; gradients wait for the arena's ring of ",
                    FormatBytesExact(ring_.size()));
  }
  for (int lane = 0; lane < graph_.num_lanes(); ++lane) {
    if (graph_.lane(lane).empty()) continue;
    const Node& head = graph_.node(graph_.lane(lane).front());
    absl::StrAppend(&text, "; ", DebugString(lane_table_.LaneAt(lane)), " has node kind ",
                    static_cast<int>(head.kind), " of step ", head.step, " position ",
                    head.position);
    if (head.visit >= 0) absl::StrAppend(&text, " group ", graph_.visit(head.visit).group);
  }
  return absl::ResourceExhaustedError(text);
}

}  // namespace harmony
