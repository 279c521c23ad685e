#include "coordinator/planner/step_estimate.h"

#include <algorithm>

#include "coordinator/core/kept_layout.h"
#include "coordinator/core/visits.h"

namespace harmony {
namespace {

Nanos Run(Nanos& lane, Nanos from, Nanos duration) {
  lane = std::max(lane, from) + duration;
  return lane;
}

}  // namespace

Nanos StepEstimator::Estimate(const Plan& plan, const StepVisits& step, int microbatches) {
  Prepare(plan, step, microbatches);
  for (size_t v = 0; v < step.visits.size(); ++v) {
    Advance(v, states_[v].tasks - 1);
    FinishVisit(v);
  }
  const Nanos end = EndOfUpdates();
  std::vector<Nanos> busy(links_.size());
  const LaneTable table(static_cast<int>(devices_.size()));
  for (int d = 0; d < table.num_devices(); ++d) {
    const Device& device = devices_[d];
    busy[table.IndexOf({LaneKind::kCompute, d})] = device.compute_busy;
    busy[table.IndexOf({LaneKind::kH2DBulk, d})] = device.link_busy;
    busy[table.IndexOf({LaneKind::kD2H, d})] = device.d2h_busy;
    busy[table.IndexOf({LaneKind::kP2P, d})] = device.p2p_busy;
  }
  return std::max({end, host_busy_, BusiestLink(links_, busy)});
}

// ---- The plan ----

void StepEstimator::Prepare(const Plan& plan, const StepVisits& step, int microbatches) {
  plan_ = &plan;
  step_ = &step;
  microbatches_ = microbatches;
  eager_ = plan.update == UpdateMode::kEager;
  links_ = LinksOfLanes(plan);
  devices_.resize(plan.devices.size());
  for (size_t d = 0; d < devices_.size(); ++d) {
    Device& device = devices_[d];
    device.compute = device.bulk = device.stream = device.d2h = device.p2p = device.link = kEarlier;
    device.compute_busy = device.link_busy = device.d2h_busy = device.p2p_busy = Nanos();
    device.resident = plan.devices[d].resident.count() / kSlotAlignment * kSlotAlignment;
    device.region.Clear();
    device.visits.clear();
    device.finished = device.next = device.item = device.first_load = 0;
    device.loads.clear();
    device.admitted = kEarlier;
  }
  const bool keeps = std::any_of(
      plan.backward_groups.begin(), plan.backward_groups.end(),
      [](const LayerGroup& g) { return g.keep_weights || g.keep_stash || g.keep_activations; });
  const KeptLayout kept(model_, keeps ? plan : Plan());
  for (size_t d = 0; keeps && d < devices_.size(); ++d) {
    devices_[d].resident -= kept.bytes(static_cast<int>(d)).count();
  }
  const auto boundaries = static_cast<size_t>(model_.num_layers()) + 1;
  const auto tasks = static_cast<size_t>(microbatches / plan.forward_span);
  stash_.assign(boundaries, kNotStashed);
  stash_at_.assign(boundaries, 0);
  size_t stashes = 0;
  for (const StashSpec& stash : StashesOf(plan)) {
    stash_[stash.boundary] = stash.kept ? plan.backward_groups[stash.group].device : kOnHost;
    stash_at_[stash.boundary] = tasks * stashes++;
  }
  stash_made_.assign(tasks * stashes, kEarlier);
  // An update takes place before those of the blocks below, or, when all wait for the last
  // gradient, after them; the step begins when block 0 has been updated.
  available_.assign(model_.blocks.size(), Nanos(0));
  Nanos sum;
  for (size_t block = 0; block + 1 < available_.size(); ++block) {
    const Nanos update = costs_.Update(static_cast<int>(eager_ ? block : block + 1));
    sum += update;
    available_[block + 1] = eager_ ? Nanos(0) - sum : sum;
  }
  host_free_ = eager_ ? Nanos(0) : sum;
  host_busy_ = loss_ = Nanos();
  kept_loaded_.assign(model_.blocks.size(), false);
  ring_.clear();
  ring_at_ = 0;
  states_.assign(step.visits.size(), State());
  offsets_.clear();
  size_t at = 0;
  for (size_t v = 0; v < states_.size(); ++v) {
    states_[v].at = at;
    PrepareVisit(v);
    at += static_cast<size_t>(states_[v].tasks);
  }
  start_.resize(at);
  finish_.resize(at);
  out_done_.assign(at, kEarlier);
  in_arena_.assign(at, kEarlier);
  arrival_.assign(at, kEarlier);
  for (size_t d = 0; d < devices_.size(); ++d) Admit(static_cast<int>(d));
}

void StepEstimator::PrepareVisit(size_t v) {
  const Visit& visit = step_->visits[v];
  State& state = states_[v];
  Device& device = devices_[visit.device];
  const bool forward = visit.kind == VisitKind::kForward;
  state.tasks = microbatches_ / visit.span;
  state.number = device.visits.size();
  state.from_top = device.visits.size() % 2 == 1;
  device.visits.push_back(static_cast<int>(v));
  state.first_item = offsets_.size();
  int64_t stacked = 0;
  for (Bytes size : step_->items[v]) {
    offsets_.push_back(stacked);
    stacked += size.AlignUp(kSlotAlignment).count();
  }
  offsets_.push_back(stacked);
  const auto duration = [&](bool first, bool last) {
    return costs_.Compute(TaskOf(visit.kind), visit.layers, visit.device, first, last, visit.span,
                          visit.activations >= 0);
  };
  state.compute = duration(false, false);
  state.compute_first = duration(true, state.tasks == 1);
  state.compute_last = state.tasks == 1 ? state.compute_first : duration(false, true);
  state.loaded = state.gradients = state.in_free = state.out_free = state.gradients_free = kEarlier;
  if (visit.has_tokens || visit.has_labels) {
    state.tokens_in = costs_.TokensIn(visit.device, visit.span);
  }
  if (visit.kind == VisitKind::kBackward && visit.has_input && visit.kept_input < 0) {
    state.stash_in = costs_.HiddenIn(std::max(visit.layers.first, 1), visit.device, 1);
  }
  // What it passes on: a forward its last output, a backward its input gradient.
  if (v + 1 == step_->visits.size()) return;
  const Visit& next = step_->visits[v + 1];
  const int boundary = forward ? visit.layers.last + 1 : visit.layers.first;
  state.hidden_in = costs_.HiddenIn(boundary, next.device, next.span);
  state.out = costs_.HiddenOut(boundary, visit.device, visit.span);
  state.certain = forward ? stash_[boundary] == kOnHost : eager_;
  const bool kept = forward && stash_[boundary] == next.device;  // read where it is kept
  state.direct = next.device != visit.device && !kept;
  state.optional = !state.certain && !kept;
  if (state.direct) {
    state.hidden_to = costs_.HiddenTo(boundary, visit.device, next.device, next.span);
  }
}

// ---- Memory ----

void StepEstimator::PlaceOf(size_t v, size_t item, int64_t* begin, int64_t* end) const {
  const State& state = states_[v];
  const int64_t from = offsets_[state.first_item + item],
                to = offsets_[state.first_item + item + 1];
  const int64_t resident = devices_[step_->visits[v].device].resident;
  *begin = state.from_top ? resident - to : from;
  *end = state.from_top ? resident - from : to;
}

// Gives memory to items of the device's visits, in order, as far as it is free.
void StepEstimator::Admit(int d) {
  Device& device = devices_[d];
  while (device.next < device.visits.size()) {
    const auto v = static_cast<size_t>(device.visits[device.next]);
    State& state = states_[v];
    if (device.item == 0 && step_->visits[v].own_blocks == 0) AddLoads(device, v, 0, kEarlier);
    while (device.item < step_->items[v].size()) {
      if (!AdmitItem(device, v)) return;
    }
    state.admitted = true;
    state.admitted_at = device.admitted;
    ++device.next;
    device.item = 0;
  }
}

bool StepEstimator::AdmitItem(Device& device, size_t v) {
  State& state = states_[v];
  const size_t item = device.item, items = step_->items[v].size();
  int64_t begin = 0, end = 0;
  PlaceOf(v, item, &begin, &end);
  RegionEstimate::Use used{kEarlier, kEarlier};
  if (begin < end && !device.region.Take(begin, end, &used)) return false;
  const Nanos free = used.ended;
  device.admitted = std::max(device.admitted, used.began);
  ++device.item;
  const auto own = static_cast<size_t>(step_->visits[v].own_blocks);
  if (item < own) {
    AddLoads(device, v, item, free);
  } else if (item + 2 == items) {
    state.in_free = free;
  } else if (item + 1 == items) {
    state.out_free = free;
  } else {
    state.gradients_free = std::max(state.gradients_free, free);
  }
  return true;
}

void StepEstimator::ReleaseItem(Device& device, size_t v, size_t item, Nanos issued, Nanos finish) {
  int64_t begin = 0, end = 0;
  PlaceOf(v, item, &begin, &end);
  if (begin < end) device.region.Release(begin, {issued, finish});
}

// The load of a block that has its memory; behind the last of these, those of kept blocks.
void StepEstimator::AddLoads(Device& device, size_t v, size_t item, Nanos ready) {
  const Visit& visit = step_->visits[v];
  const auto add = [&](int block, Nanos from) {
    device.loads.push_back(
        {static_cast<int>(v), std::max(from, available_[block]), costs_.Load(block, visit.device)});
  };
  if (visit.own_blocks > 0) add(visit.blocks[item], ready);
  if (static_cast<int>(item) + 1 < visit.own_blocks) return;
  for (size_t i = static_cast<size_t>(visit.own_blocks); i < visit.blocks.size(); ++i) {
    const int block = visit.blocks[i];
    if (kept_loaded_[block]) continue;
    kept_loaded_[block] = true;
    add(block, kEarlier);
  }
}

// ---- Copies to a device ----

// The next load gets the link.
void StepEstimator::TakeLoad(Device& device) {
  const Load& load = device.loads[device.first_load++];
  device.bulk = device.link = std::max({load.ready, device.bulk, device.link}) + load.duration;
  device.link_busy += load.duration;
  Nanos& loaded = states_[load.visit].loaded;
  loaded = std::max(loaded, device.bulk);
}

// A copy on the lane of activations. Loads that could begin before it have been given the link.
Nanos StepEstimator::Stream(Device& device, Nanos ready, Nanos duration) {
  const Nanos from = std::max(ready, device.stream);
  while (device.first_load < device.loads.size() &&
         std::max(device.loads[device.first_load].ready, device.bulk) <= from) {
    TakeLoad(device);
  }
  device.stream = device.link = std::max(from, device.link) + duration;
  device.link_busy += duration;
  return device.stream;
}

void StepEstimator::FinishLoads(Device& device, size_t v) {
  while (device.first_load < device.loads.size() &&
         device.loads[device.first_load].visit <= static_cast<int>(v)) {
    TakeLoad(device);
  }
}

// ---- Tasks ----

// All visits of its device before it have finished, and it has its memory.
bool StepEstimator::CanRun(size_t v) const {
  return states_[v].admitted && devices_[step_->visits[v].device].finished >= states_[v].number;
}

void StepEstimator::Advance(size_t v, int task) {
  while (states_[v].next <= task) RunTask(v, states_[v].next);
}

void StepEstimator::RunTask(size_t v, int task) {
  const Visit& visit = step_->visits[v];
  State& state = states_[v];
  Device& device = devices_[visit.device];
  Nanos from = InputsOf(v, task);
  if (task == 0) {
    FinishLoads(device, v);
    from = std::max({from, state.loaded, state.gradients_free});
  }
  if (task >= visit.slots) {
    PassOn(v, task - visit.slots);
    from = std::max(from, out_done_[state.at + static_cast<size_t>(task - visit.slots)]);
  } else {
    from = std::max(from, state.out_free);
  }
  const Nanos duration = task == 0                 ? state.compute_first
                         : task + 1 == state.tasks ? state.compute_last
                                                   : state.compute;
  const size_t at = state.at + static_cast<size_t>(task);
  start_[at] = std::max(from, device.compute);
  finish_[at] = device.compute = start_[at] + duration;
  device.compute_busy += duration;
  out_done_[at] = std::max(out_done_[at], finish_[at]);
  ++state.next;
  WriteOutputs(v, task);
  if (state.next < state.tasks) return;
  const size_t items = step_->items[v].size();
  const auto own = static_cast<size_t>(visit.own_blocks);
  for (size_t item = 0; item < own; ++item) ReleaseItem(device, v, item, start_[at], finish_[at]);
  ReleaseItem(device, v, items - 2, start_[at], finish_[at]);
  Admit(visit.device);
}

Nanos StepEstimator::InputsOf(size_t v, int task) {
  const Visit& visit = step_->visits[v];
  State& state = states_[v];
  Device& device = devices_[visit.device];
  const int m = task * visit.span;
  const Nanos slot = task < visit.slots
                         ? state.in_free
                         : finish_[state.at + static_cast<size_t>(task - visit.slots)];
  Nanos from = kEarlier;
  if (visit.has_tokens) from = std::max(from, Stream(device, slot, state.tokens_in));
  if (visit.has_labels) from = std::max(from, Stream(device, slot, state.tokens_in));
  const bool backward = visit.kind == VisitKind::kBackward;
  if (visit.kept_input >= 0) {
    from = std::max(from, StashMade(visit.kept_input, m));
  } else if (backward && visit.has_input) {
    const Nanos made = StashMade(std::max(visit.layers.first, 1), m);
    from = std::max(from, Stream(device, std::max(slot, made), state.stash_in));
  }
  const bool chained =
      backward ? visit.has_output_gradient : visit.has_input && visit.kept_input < 0;
  if (!chained) return from;
  FindWay(v, task);
  const Nanos direct = arrival_[state.at + static_cast<size_t>(task)];
  if (direct != kEarlier) return std::max(from, direct);
  const size_t made = states_[v - 1].at + static_cast<size_t>(m / step_->visits[v - 1].span);
  const Nanos ready = std::max(slot, in_arena_[made]);
  return std::max(from, Stream(device, ready, states_[v - 1].hidden_in));
}

// Decides how the inputs of a visit's tasks up to this one come: device to device when it has its
// memory and a free slot by then.
void StepEstimator::FindWay(size_t v, int task) {
  const Visit& visit = step_->visits[v];
  const Visit& maker = step_->visits[v - 1];
  State& state = states_[v];
  State& made = states_[v - 1];
  Device& device = devices_[maker.device];
  for (; state.consumer_next <= task; ++state.consumer_next) {
    const int j = state.consumer_next;
    const size_t from = made.at + static_cast<size_t>(j * visit.span / maker.span);
    const Nanos at = std::max(finish_[from], device.p2p);
    bool direct = made.direct && state.admitted && state.admitted_at <= at;
    if (direct && j >= visit.slots) {
      const int user = j - visit.slots;
      // Only so far as it has begun by then.
      while (state.next <= user && CanRun(v) && devices_[visit.device].compute <= at) {
        RunTask(v, state.next);
      }
      direct = state.next > user && start_[state.at + static_cast<size_t>(user)] <= at;
    }
    if (direct) {
      const Nanos slot = j < visit.slots ? state.in_free
                                         : finish_[state.at + static_cast<size_t>(j - visit.slots)];
      const Nanos end = Run(device.p2p, std::max(at, slot), made.hidden_to);
      device.p2p_busy += made.hidden_to;
      arrival_[state.at + static_cast<size_t>(j)] = end;
      out_done_[from] = std::max(out_done_[from], end);
    } else if (made.optional && in_arena_[from] == kEarlier) {
      in_arena_[from] = Run(device.d2h, finish_[from], made.out);
      device.d2h_busy += made.out;
      out_done_[from] = std::max(out_done_[from], in_arena_[from]);
    }
  }
}

// The output of a task finds its way to the next visit.
void StepEstimator::PassOn(size_t v, int task) {
  if (v + 1 == states_.size()) return;
  if (!states_[v].direct && !states_[v].optional) return;
  const Visit& visit = step_->visits[v];
  FindWay(v + 1, (task + 1) * visit.span / step_->visits[v + 1].span - 1);
}

Nanos StepEstimator::StashMade(int boundary, int m) const {
  if (stash_[boundary] == kNotStashed) return kEarlier;
  return stash_made_[stash_at_[boundary] + static_cast<size_t>(m / plan_->forward_span)];
}

// The copies that are made whatever way the output takes.
void StepEstimator::WriteOutputs(size_t v, int task) {
  const Visit& visit = step_->visits[v];
  const State& state = states_[v];
  Device& device = devices_[visit.device];
  const size_t at = state.at + static_cast<size_t>(task);
  for (int boundary : visit.outputs) {
    const int place = stash_[boundary];
    if (place == kNotStashed) continue;
    Nanos made = finish_[at];
    if (place == kOnHost) {
      const Nanos out = costs_.HiddenOut(boundary, visit.device, visit.span);
      made = Run(device.d2h, made, out);
      device.d2h_busy += out;
      if (boundary == visit.layers.last + 1) in_arena_[at] = made;
    } else if (place != visit.device) {
      const Nanos to = costs_.HiddenTo(boundary, visit.device, place, visit.span);
      made = Run(device.p2p, made, to);
      device.p2p_busy += to;
    }
    out_done_[at] = std::max(out_done_[at], made);
    stash_made_[stash_at_[boundary] + static_cast<size_t>(task)] = made;
  }
  if (!visit.has_input_gradient || !eager_) return;
  in_arena_[at] = Run(device.d2h, finish_[at], state.out);
  device.d2h_busy += state.out;
  out_done_[at] = std::max(out_done_[at], in_arena_[at]);
}

// All tasks have run: the outputs that are left, then the gradients.
void StepEstimator::FinishVisit(size_t v) {
  const Visit& visit = step_->visits[v];
  State& state = states_[v];
  Device& device = devices_[visit.device];
  const size_t items = step_->items[v].size();
  const Nanos last = finish_[state.at + static_cast<size_t>(state.tasks) - 1];
  PassOn(v, state.tasks - 1);
  Nanos out = last;
  for (int task = std::max(0, state.tasks - visit.slots); task < state.tasks; ++task) {
    out = std::max(out, out_done_[state.at + static_cast<size_t>(task)]);
  }
  ReleaseItem(device, v, items - 1, out, out);
  size_t item = static_cast<size_t>(visit.own_blocks);
  if (visit.kind != VisitKind::kForward) {
    state.gradients = last;
    if (visit.kind == VisitKind::kFused) {
      loss_ = Run(device.d2h, last, costs_.LossOut(visit.device));
      ReleaseItem(device, v, items - 3, last, loss_);
    }
    const Nanos room = eager_ ? RingFree(v) : kEarlier;
    for (int use : visit.uses) {
      const Nanos duration = costs_.GradientOut(use, visit.device);
      const Nanos from = std::max({last, room, device.d2h});
      state.gradients = Run(device.d2h, from, duration);
      device.d2h_busy += duration;
      ReleaseItem(device, v, item++, from, state.gradients);
    }
    RunUpdates(v);
  }
  ++device.finished;
  Admit(visit.device);
}

// ---- Updates ----

Nanos StepEstimator::HostRun(Nanos from, Nanos duration) {
  host_busy_ += duration;
  return Run(host_free_, from, duration);
}

// When the group's piece of the gradient ring is free; its own end is set by RunUpdates.
Nanos StepEstimator::RingFree(size_t v) {
  int64_t size = 0;
  for (int use : step_->visits[v].uses) {
    const ParamBlock& block = model_.blocks[model_.uses[use].block];
    if (block.uses.size() == 1) size += block.size().AlignUp(kSlotAlignment).count();
  }
  if (ring_at_ + size > plan_->gradient_ring.count()) ring_at_ = 0;
  Nanos free = kEarlier;
  for (const RingPiece& piece : ring_) {
    if (piece.begin < ring_at_ + size && ring_at_ < piece.end) free = std::max(free, piece.finish);
  }
  ring_.push_back({ring_at_, ring_at_ + size, kEarlier});
  ring_at_ += size;
  return free;
}

void StepEstimator::RunUpdates(size_t v) {
  const Visit& visit = step_->visits[v];
  const Nanos ready = states_[v].gradients;
  if (visit.kind == VisitKind::kFused) HostRun(loss_, costs_.Host(HostTaskKind::kStepScalars, -1));
  if (eager_ || plan_->clip) {
    for (auto use = visit.uses.rbegin(); use != visit.uses.rend(); ++use) {
      const int block = model_.uses[*use].block;
      if (model_.blocks[block].uses.front() != *use) continue;
      HostRun(ready, eager_ ? costs_.Update(block) : costs_.Host(HostTaskKind::kNorm, block));
    }
  }
  if (eager_) ring_.back().finish = host_free_;
  host_free_ = std::max(host_free_, ready);
}

// Of block 0.
Nanos StepEstimator::EndOfUpdates() {
  if (eager_) return host_free_;
  if (plan_->clip) HostRun(kEarlier, costs_.Host(HostTaskKind::kClip, -1));
  const Nanos end = HostRun(kEarlier, costs_.Update(0));
  for (size_t block = 1; block < model_.blocks.size(); ++block) {
    host_busy_ += costs_.Update(static_cast<int>(block));
  }
  return end;
}

}  // namespace harmony
