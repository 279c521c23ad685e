#include "bench/baselines/engine/device_memory.h"

#include <algorithm>

namespace harmony::baselines {

using command::LaneKind;

DeviceMemory::DeviceMemory(const LayerCosts& costs, int device, Bytes capacity,
                           const Paging& paging, Timeline* timeline, Recording* recording)
    : costs_(costs),
      device_(device),
      capacity_(capacity),
      paging_(paging),
      timeline_(*timeline),
      recording_(recording),
      free_bytes_(capacity) {
  if (recording_ != nullptr) recording_->AddDevice(capacity);
  free_.push_back({capacity, {kNoOperation, kNoOperation, kNoOperation}});
}

Tensor DeviceMemory::Add(const TensorTraits& traits) {
  State state;
  state.traits = traits;
  state.room = InPages(traits.size);
  state.on_host = traits.on_host;
  tensors_.push_back(state);
  return static_cast<Tensor>(tensors_.size() - 1);
}

Operation DeviceMemory::Trigger() const {
  return computed_.size() > static_cast<size_t>(paging_.lookahead)
             ? computed_[computed_.size() - 1 - static_cast<size_t>(paging_.lookahead)]
             : kNoOperation;
}

void DeviceMemory::CheckFits(const DeviceTask& task) {
  Bytes needed = fixed_ + InPages(task.scratch);
  const auto count = [&](const std::vector<Tensor>& tensors) {
    for (Tensor tensor : tensors) {
      State& state = at(tensor);
      if (state.pinned) continue;
      state.pinned = true;
      if (!state.resident || state.traits.evictable) needed += state.room;
    }
  };
  count(task.reads);
  count(task.writes);
  count(task.creates);
  if (needed > capacity_ && (!shortage_ || needed > shortage_->needed)) {
    shortage_ = Shortage{task.what, needed, capacity_};
  }
}

Operation DeviceMemory::Run(const DeviceTask& task) {
  CheckFits(task);
  std::vector<Operation> after = task.after, room;
  for (const std::vector<Tensor>* tensors : {&task.reads, &task.writes}) {
    for (Tensor tensor : *tensors) {
      if (!at(tensor).resident) {
        room.clear();
        Take(at(tensor).room, &room);
        BringIn(tensor, room);
      }
      after.push_back(at(tensor).ready);
    }
  }
  for (Tensor tensor : task.creates) {
    Take(at(tensor).room, &after);
    Enter(tensor);
  }
  const Bytes scratch = InPages(task.scratch);
  Take(scratch, &after);
  const Stay scratch_stay = NewStay(scratch);
  const bool compute = task.lane == LaneKind::kCompute;
  const Operation operation = compute ? timeline_.Add({task.lane, device_}, task.duration, after)
                                      : timeline_.AddCopy({task.lane, device_}, task.duration,
                                                          task.moved, task.traffic, after);
  RecordTask(task, scratch_stay, operation);
  for (Tensor tensor : task.reads) Touch(tensor, /*dirty=*/false, operation, compute);
  for (Tensor tensor : task.writes) Touch(tensor, /*dirty=*/true, operation, compute);
  for (Tensor tensor : task.creates) Touch(tensor, /*dirty=*/true, operation, compute);
  if (compute) {
    computed_.push_back(operation);
    if (computed_.size() > static_cast<size_t>(paging_.lookahead) + 1) computed_.pop_front();
  }
  GiveBack(scratch, scratch_stay, {operation, kNoOperation, kNoOperation});
  for (Tensor tensor : task.frees) Free(tensor, operation);
  return operation;
}

void DeviceMemory::Take(Bytes size, std::vector<Operation>* after) {
  while (free_bytes_ < size && EvictOne()) {
  }
  used_ += size;
  peak_ = std::max(peak_, used_);
  free_bytes_ -= size;  // below zero: what is missing was noted
  for (Bytes left = size; left.count() > 0 && !free_.empty();) {
    Room& room = free_.front();
    for (Operation operation : room.after) {
      if (operation != kNoOperation) after->push_back(operation);
    }
    const Bytes part = std::min(left, room.size);
    left -= part;
    room.size -= part;
    if (room.size.count() == 0) free_.pop_front();
  }
}

void DeviceMemory::GiveBack(Bytes size, Stay stay, std::array<Operation, 3> after) {
  if (size.count() == 0) return;
  if (recording_ != nullptr) recording_->GiveBack(stay);
  used_ -= size;
  free_bytes_ += size;
  free_.push_back({size, after});
}

bool DeviceMemory::EvictOne() {
  const auto found = std::find_if(recent_.begin(), recent_.end(),
                                  [&](Tensor tensor) { return !at(tensor).pinned; });
  if (found == recent_.end()) return false;
  const Tensor tensor = *found;
  State& state = at(tensor);
  Operation written = kNoOperation;
  if (!state.on_host) {
    const Operation needed = paging_.writes_back_ahead ? kNoOperation : Trigger();
    written = timeline_.AddCopy({LaneKind::kD2H, device_},
                                costs_.Copy(LaneKind::kD2H, device_, state.traits.size),
                                state.traits.size, state.traits.traffic, {needed, state.ready});
    RecordCopy(Action::Kind::kCopyOut, tensor, written);
    state.on_host = true;
    state.evicted = true;
    state.host_ready = written;
    evicted_ += state.traits.size;
    host_peak_ = std::max(host_peak_, evicted_);
  }
  Leave(tensor, {written, state.last_use[0], state.last_use[1]});
  return true;
}

void DeviceMemory::Enter(Tensor tensor) {
  State& state = at(tensor);
  state.resident = true;
  state.stay = NewStay(state.room);
  state.last_use = {kNoOperation, kNoOperation};
  if (state.traits.evictable) {
    state.place = recent_.insert(recent_.end(), tensor);
  } else {
    fixed_ += state.room;
  }
}

void DeviceMemory::Leave(Tensor tensor, std::array<Operation, 3> after) {
  State& state = at(tensor);
  if (state.traits.evictable) {
    recent_.erase(state.place);
  } else {
    fixed_ -= state.room;
  }
  state.resident = false;
  GiveBack(state.room, state.stay, after);
}

void DeviceMemory::BringIn(Tensor tensor, const std::vector<Operation>& room) {
  std::vector<Operation> after = room;
  after.push_back(Trigger());
  after.push_back(at(tensor).host_ready);
  Enter(tensor);
  at(tensor).ready = CopyIn(tensor, after);
}

Operation DeviceMemory::CopyIn(Tensor tensor, const std::vector<Operation>& after, Queue queue) {
  const TensorTraits& traits = at(tensor).traits;
  const Bytes own = PartOf(traits.size, traits.shards);
  if (traits.own_share != kNoTensor) return Gather(tensor, traits.size - own, after);
  const Operation loaded = timeline_.AddCopy({LaneKind::kH2DBulk, device_},
                                             costs_.Copy(LaneKind::kH2DBulk, device_, own), own,
                                             traits.traffic, after, queue);
  RecordCopy(Action::Kind::kCopyIn, tensor, loaded);
  if (traits.shards == 1) return loaded;
  return Gather(tensor, traits.size - own, {loaded});
}

// Each device passes its part on to all others: as much goes out as comes in. Reductions of
// gradients have a stream of their own, which what the next layer needs does not wait for.
Operation DeviceMemory::Gather(Tensor tensor, Bytes others, std::vector<Operation> after) {
  const Tensor share = at(tensor).traits.own_share;
  if (share != kNoTensor) after.push_back(at(share).ready);
  const Operation gathered =
      timeline_.AddCopy({LaneKind::kP2P, device_}, costs_.Copy(LaneKind::kP2P, device_, others),
                        others, at(tensor).traits.traffic, after, Queue::kOwn);
  if (share != kNoTensor) UsedBy(share, gathered);
  return gathered;
}

void DeviceMemory::Forget(State& state) {
  state.on_host = false;
  if (!state.evicted) return;
  evicted_ -= state.traits.size;
  state.evicted = false;
}

void DeviceMemory::RecordCopy(Action::Kind kind, Tensor tensor, Operation operation) {
  if (recording_ == nullptr) return;
  Action& action = recording_->At(operation);
  action.kind = kind;
  action.device = device_;
  action.size = at(tensor).traits.size;
  action.traffic = at(tensor).traits.traffic;
  action.uses = {{.tensor = tensor,
                  .stay = at(tensor).stay,
                  .made = kind == Action::Kind::kCopyIn,
                  .dirty = false}};
}

void DeviceMemory::RecordTask(const DeviceTask& task, Stay scratch, Operation operation) {
  if (recording_ == nullptr) return;
  Action& action = recording_->At(operation);
  action.kind = Action::Kind::kTask;
  action.device = device_;
  action.scratch = scratch;
  action.work = task.work;
  action.ends = task.frees;
  action.size = task.moved;
  action.traffic = task.traffic;
  const auto add = [&](const std::vector<Tensor>& tensors, bool made, bool dirty) {
    for (Tensor tensor : tensors) action.uses.push_back({tensor, at(tensor).stay, made, dirty});
  };
  add(task.reads, /*made=*/false, /*dirty=*/false);
  add(task.writes, /*made=*/false, /*dirty=*/true);
  add(task.creates, /*made=*/true, /*dirty=*/true);
}

void DeviceMemory::Touch(Tensor tensor, bool dirty, Operation operation, bool compute) {
  State& state = at(tensor);
  state.pinned = false;
  state.last_use[compute ? 0 : 1] = operation;
  if (state.traits.evictable) recent_.splice(recent_.end(), recent_, state.place);
  if (!dirty) return;
  state.ready = operation;
  Forget(state);
}

void DeviceMemory::Free(Tensor tensor, Operation after) {
  State& state = at(tensor);
  if (state.resident) Leave(tensor, {after, state.last_use[0], state.last_use[1]});
  Forget(state);
}

void DeviceMemory::Drop(Tensor tensor, Operation after) {
  State& state = at(tensor);
  if (state.resident) Leave(tensor, {after, state.last_use[0], state.last_use[1]});
}

void DeviceMemory::ReplaceOnHost(Tensor tensor, Operation by) {
  State& state = at(tensor);
  if (state.resident) Leave(tensor, {kNoOperation, state.last_use[0], state.last_use[1]});
  state.on_host = true;
  state.host_ready = by;
}

Operation DeviceMemory::RefreshFromHost(Tensor tensor, Operation after) {
  State& state = at(tensor);
  state.ready = CopyIn(tensor, {after, state.last_use[0], state.last_use[1]}, Queue::kOwn);
  state.on_host = true;
  return state.ready;
}

void DeviceMemory::UsedBy(Tensor tensor, Operation operation) {
  at(tensor).last_use[1] = operation;
}

}  // namespace harmony::baselines
