#include "coordinator/core/memory_admission.h"

#include <algorithm>

namespace harmony {

template <typename Use>
void MemoryAdmission::ForEachFirstWrite(const Node& node, Use&& use) const {
  const FirstWrite writes = TraitsOf(node.kind).writes;
  if (writes == FirstWrite::kNothing || node.state == NodeState::kWayOpen) return;
  const Visit& visit = graph_.visit(node.visit);
  const DeviceMemory& memory = MemoryOf(visit);
  switch (writes) {
    case FirstWrite::kNothing:
      break;
    case FirstWrite::kWeights:
      if (node.position >= visit.own_blocks) break;
      use(memory.waits(visit.first_weight + node.position));
      break;
    case FirstWrite::kInputSlot:
      if (node.position < visit.slots) use(memory.waits(visit.in));
      break;
    case FirstWrite::kOutputs:
      if (node.position < visit.slots) use(memory.waits(visit.out));
      if (node.position > 0) break;
      for (int64_t item = visit.first_gradient; item < visit.in; ++item) use(memory.waits(item));
      break;
    case FirstWrite::kConsumer: {
      const Visit& consumer = graph_.visit(visit.consumer);
      if (node.index < consumer.slots) use(MemoryOf(consumer).waits(consumer.in));
      break;
    }
    case FirstWrite::kArenaGradient:
      if (const Users* users = slots_.WaitsOf(node)) use(*users);
      break;
  }
}

bool MemoryAdmission::IsGiven(const Node& node) const {
  const FirstWrite writes = TraitsOf(node.kind).writes;
  if (writes == FirstWrite::kNothing) return true;
  const Visit& visit = graph_.visit(node.visit);
  const DeviceMemory& memory = MemoryOf(visit);
  switch (writes) {
    case FirstWrite::kNothing:
    case FirstWrite::kConsumer:  // the way was chosen because it is
      return true;
    case FirstWrite::kWeights:
      return node.position >= visit.own_blocks ||  // in a place of its own
             memory.admitted(visit.first_weight + node.position);
    case FirstWrite::kInputSlot:
      return memory.admitted(visit.in);
    case FirstWrite::kOutputs:
      return memory.admitted(visit.end_item - 1);
    case FirstWrite::kArenaGradient:
      return slots_.IsGiven(node);
  }
  return true;
}

Nanos MemoryAdmission::FreeAt(const Node& node) const {
  Nanos at;
  ForEachFirstWrite(node, [&](const Users& users) { at = std::max(at, users.finish); });
  return at;
}

void MemoryAdmission::CollectUsers(const Node& node, Users& users) const {
  ForEachFirstWrite(node, [&](const Users& before) { users.Merge(before); });
}

bool MemoryAdmission::Admit() {
  bool any = false;
  for (DeviceMemory& memory : memory_) any = memory.Admit() || any;
  return any;
}

bool MemoryAdmission::AfterIssue(const Node& node) {
  const LastRead reads = TraitsOf(node.kind).reads;
  if (reads == LastRead::kNothing) return false;
  Visit& visit = graph_.visit(node.visit);
  switch (reads) {
    case LastRead::kNothing:
      break;
    case LastRead::kInputs:
      return AfterCompute(node, visit);
    case LastRead::kOutput:
      --visit.outs_left;
      AddUser(visit.out_users, node);
      return ReleaseOutputs(visit);
    case LastRead::kLosses:
      return slots_.IsOfLastReplica(node, visit) && Release(visit, visit.loss, UsersOf(node));
    case LastRead::kGradient:
      return slots_.IsOfLastReplica(node, visit) &&
             Release(visit, visit.first_gradient + node.position, UsersOf(node));
  }
  return false;
}

bool MemoryAdmission::AfterDrop(const Node& node) {
  if (TraitsOf(node.kind).reads != LastRead::kOutput) return false;
  Visit& visit = graph_.visit(node.visit);
  --visit.outs_left;
  return ReleaseOutputs(visit);
}

bool MemoryAdmission::AfterCompute(const Node& node, Visit& visit) {
  AddUser(visit.out_users, node);
  if (--visit.compute_left > 0) return false;
  const Users users = UsersOf(node);
  bool given = false;
  for (int64_t item = visit.first_weight; item < visit.first_gradient; ++item) {
    given = Release(visit, item, users) || given;
  }
  given = Release(visit, visit.in, users) || given;
  return ReleaseOutputs(visit) || given;
}

bool MemoryAdmission::ReleaseOutputs(Visit& visit) {
  if (visit.compute_left > 0 || visit.outs_left != 0) return false;
  visit.outs_left = -1;  // once
  return Release(visit, visit.out, visit.out_users);
}

bool MemoryAdmission::Release(const Visit& visit, int64_t item, const Users& users) {
  DeviceMemory& memory = memory_[static_cast<size_t>(visit.device)];
  memory.Release(item, users);
  return memory.Admit();
}

}  // namespace harmony
