#include "coordinator/dispatch/memory/memory_admission.h"

#include <algorithm>

#include "coordinator/dispatch/graph/group_executions.h"

namespace harmony::dispatch {
namespace {

// The item that a sum which is passed on becomes a part of.
int64_t TakenItem(const Node& sum, const GroupExecution& giver, const GroupExecution& taker) {
  return TakenBuffer(taker, giver) == 0 ? taker.first_gradient + sum.position : taker.waiting_sums;
}

}  // namespace

template <typename Use>
void MemoryAdmission::ForEachFirstWrite(const Node& node, Use&& use) const {
  const FirstWrite writes = TraitsOf(node.kind).writes;
  if (writes == FirstWrite::kNothing || node.state == NodeState::kWayOpen) return;
  const GroupExecution& execution = graph_.execution(node.execution);
  const DeviceMemory& memory = MemoryOf(execution);
  switch (writes) {
    case FirstWrite::kNothing:
    case FirstWrite::kArenaGradient:  // of no device
      break;
    case FirstWrite::kWeights:
      if (node.position < execution.own_blocks) use(memory, execution.first_weight + node.position);
      break;
    case FirstWrite::kInputSlot:
      if (node.position < execution.slots) use(memory, execution.in);
      break;
    case FirstWrite::kOutputs:
      if (node.position < execution.slots) use(memory, execution.out);
      if (node.position == execution.waiting_from) use(memory, execution.waiting_sums);
      if (node.position > 0) break;
      if (execution.has_loss()) use(memory, execution.loss);
      for (int64_t item = execution.first_gradient; item < execution.waiting_sums; ++item) {
        use(memory, item);
      }
      break;
    case FirstWrite::kConsumer: {
      const GroupExecution& consumer = graph_.ConsumerOf(node);
      if (node.index < consumer.slots) use(MemoryOf(consumer), consumer.in);
      break;
    }
    case FirstWrite::kTaker: {
      const GroupExecution& taker = graph_.execution(execution.taker);
      use(MemoryOf(taker), TakenItem(node, execution, taker));
      break;
    }
  }
}

template <typename Use>
void MemoryAdmission::ForEachUsers(const Node& node, Use&& use) const {
  ForEachFirstWrite(node,
                    [&](const DeviceMemory& memory, int64_t item) { use(memory.waits(item)); });
  if (TraitsOf(node.kind).writes != FirstWrite::kArenaGradient) return;
  if (const Users* users = slots_.WaitsOf(node)) use(*users);
}

bool MemoryAdmission::IsGiven(const Node& node) const {
  if (TraitsOf(node.kind).writes == FirstWrite::kArenaGradient) return slots_.IsGiven(node);
  bool given = true;
  ForEachFirstWrite(
      node, [&](const DeviceMemory& memory, int64_t item) { given = given && memory.held(item); });
  return given;
}

Nanos MemoryAdmission::FreeAt(const Node& node) const {
  Nanos at;
  ForEachUsers(node, [&](const Users& users) { at = std::max(at, users.finish); });
  return at;
}

void MemoryAdmission::CollectUsers(const Node& node, Users& users) const {
  ForEachUsers(node, [&](const Users& before) { users.Merge(before); });
}

bool MemoryAdmission::Admit() {
  bool any = false;
  for (DeviceMemory& memory : memory_) any = memory.Admit() || any;
  return any;
}

int MemoryAdmission::AfterIssue(const Node& node) {
  const LastRead reads = TraitsOf(node.kind).reads;
  if (reads == LastRead::kNothing) return -1;
  GroupExecution& own = graph_.execution(node.execution);
  GroupExecution& read = reads == LastRead::kPeerWeights ? graph_.execution(own.weights_from) : own;
  return AfterRead(node, reads, read) ? read.device : -1;
}

bool MemoryAdmission::AfterRead(const Node& node, LastRead reads, GroupExecution& execution) {
  switch (reads) {
    case LastRead::kNothing:
      break;
    case LastRead::kInputs:
      return AfterCompute(node, execution);
    case LastRead::kPeerWeights:
      AddUser(execution.weight_users, node);
      --execution.passes_left;
      return ReleaseWeights(execution);
    case LastRead::kOutput:
      --execution.outs_left;
      AddUser(execution.out_users, node);
      return ReleaseOutputs(execution);
    case LastRead::kLosses:
      return slots_.IsOfLastPart(node, execution) &&
             Release(execution, execution.loss, UsersOf(node));
    case LastRead::kGradient:
      return slots_.IsOfLastPart(node, execution) &&
             Release(execution, execution.first_gradient + node.position, UsersOf(node));
  }
  return false;
}

bool MemoryAdmission::AfterDrop(const Node& node) {
  if (TraitsOf(node.kind).reads != LastRead::kOutput) return false;
  GroupExecution& execution = graph_.execution(node.execution);
  --execution.outs_left;
  return ReleaseOutputs(execution);
}

bool MemoryAdmission::AfterCompute(const Node& node, GroupExecution& execution) {
  AddUser(execution.out_users, node);
  if (--execution.compute_left > 0) return false;
  AddUser(execution.weight_users, node);
  bool given = ReleaseWeights(execution);
  given = Release(execution, execution.in, UsersOf(node)) || given;
  if (execution.kind != ExecutionKind::kForward) {
    given = Release(execution, execution.waiting_sums, UsersOf(node)) || given;
  }
  return ReleaseOutputs(execution) || given;
}

bool MemoryAdmission::ReleaseWeights(const GroupExecution& execution) {
  if (execution.compute_left > 0 || execution.passes_left > 0) return false;
  bool given = false;
  const int64_t end = execution.first_weight + execution.own_blocks;
  for (int64_t item = execution.first_weight; item < end; ++item) {
    given = Release(execution, item, execution.weight_users) || given;
  }
  return given;
}

bool MemoryAdmission::ReleaseOutputs(GroupExecution& execution) {
  if (execution.compute_left > 0 || execution.outs_left != 0) return false;
  execution.outs_left = -1;  // once
  return Release(execution, execution.out, execution.out_users);
}

bool MemoryAdmission::Release(const GroupExecution& execution, int64_t item, const Users& users) {
  DeviceMemory& memory = memory_[static_cast<size_t>(execution.device)];
  memory.Release(item, users);
  return memory.Admit();
}

}  // namespace harmony::dispatch
