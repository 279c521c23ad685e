#include "coordinator/core/step_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/visits.h"

namespace harmony {
namespace {

// Of the task that runs a microbatch; -1: none does.
int PositionOf(const Visit& visit, int microbatch) {
  const int task = microbatch / visit.span;
  const auto at = std::lower_bound(visit.microbatches.begin(), visit.microbatches.end(), task);
  if (at == visit.microbatches.end() || *at != task) return -1;
  return static_cast<int>(at - visit.microbatches.begin());
}

}  // namespace

StepBuilder::StepBuilder(const ModelSpec& model, const Plan& plan, const ArenaLayout& layout,
                         const KeptLayout& kept, WorkGraph& graph,
                         std::vector<DeviceMemory>& memory, StepProgress& progress)
    : model_(model),
      plan_(plan),
      layout_(layout),
      kept_(kept),
      graph_(graph),
      memory_(memory),
      progress_(progress),
      lanes_(static_cast<int>(plan.devices.size())),
      eager_(plan.update == UpdateMode::kEager),
      last_update_(model.blocks.size(), kNoNode) {
  end_of_updates_.fill({-1, kNoNode});
}

NodeId StepBuilder::Add(NodeKind kind, int64_t visit, int position, int index,
                        std::initializer_list<NodeId> deps) {
  Node node;
  node.kind = kind;
  node.lane = lanes_.IndexOf({TraitsOf(kind).lane, visit < 0 ? 0 : graph_.visit(visit).device});
  node.step = step_;
  node.visit = visit;
  node.position = position;
  node.index = index;
  for (NodeId dep : deps) {
    if (dep != kNoNode) node.deps.push_back(dep);
  }
  progress_.Added(node);
  return graph_.Add(std::move(node));
}

void StepBuilder::AddInitialize(int64_t step) {
  step_ = step;
  initialized_ = AddHost(NodeKind::kInitialize, 0, {});
  std::fill(last_update_.begin(), last_update_.end(), initialized_);
}

void StepBuilder::AddCheckpoint(int64_t step) {
  const int64_t current = std::exchange(step_, step);
  const auto& [updated, last_update] = end_of_updates_[static_cast<size_t>(step & 3)];
  last_checkpoint_ =
      AddHost(NodeKind::kCheckpoint, 0, {updated == step ? last_update : initialized_});
  step_ = current;
}

absl::Status StepBuilder::AddStep(const StepWork& work, bool checkpoint_first) {
  step_ = work.step;
  work_ = &work;
  status_ = absl::OkStatus();
  batch_ = kNoNode;
  losses_.clear();
  const int shares = plan_.num_shares();
  producer_.assign(shares, -1);
  kept_loads_.clear();
  forward_visits_.assign(shares, std::vector<int64_t>(model_.num_layers(), -1));
  backward_visits_.assign(plan_.backward_groups.size(), std::vector<int64_t>(shares, -1));
  if (work.load_batch) {
    batch_ = AddHost(NodeKind::kLoadBatch, 0, {fused_started_});
  }
  if (checkpoint_first) AddCheckpoint(work.step - 1);
  for (int f = 0; f < static_cast<int>(plan_.forward_groups.size()); ++f) {
    for (int share = 0; share < shares; ++share) AddForward(work.shares[share], f, share);
  }
  for (int g = static_cast<int>(plan_.backward_groups.size()) - 1; g >= 0; --g) {
    for (int share = 0; share < shares; ++share) AddBackward(work.shares[share], g, share);
  }
  AddHostTasks(work);
  return status_;
}

void StepBuilder::AddForward(const ShareWork& work, int group, int share) {
  if (work.forward[group].empty()) {
    producer_[share] = -1;
    return;
  }
  Visit visit =
      PlannedVisit(model_, plan_, VisitKind::kForward, group, share, work.forward_last[group]);
  visit.microbatches = work.forward[group];
  const int64_t id = BeginVisit(std::move(visit));
  const LayerRange layers = graph_.visit(id).layers;
  std::fill(forward_visits_[share].begin() + layers.first,
            forward_visits_[share].begin() + layers.last + 1, id);
  producer_[share] = ReachesEnd(graph_.visit(id)) ? id : -1;
}

bool StepBuilder::ReachesEnd(const Visit& visit) const {
  return visit.layers.last == plan_.forward_groups[visit.group].layers.last;
}

void StepBuilder::AddBackward(const ShareWork& work, int group, int share) {
  if (!work.backward[group]) {
    producer_[share] = -1;
    return;
  }
  const bool fused = group + 1 == static_cast<int>(plan_.backward_groups.size());
  Visit visit =
      PlannedVisit(model_, plan_, fused ? VisitKind::kFused : VisitKind::kBackward, group, share);
  producer_[share] = backward_visits_[group][share] = BeginVisit(std::move(visit));
}

int64_t StepBuilder::BeginVisit(Visit visit) {
  visit.step = step_;
  const int count = static_cast<int>(visit.microbatches.size());
  visit.slots = std::min(plan_.stream_slots, count);
  visit.compute_left = count;
  visit.positions.resize(count);
  if (absl::Status status = AddItems(visit); !status.ok() && status_.ok()) status_ = status;
  const int64_t id = graph_.AddVisit(std::move(visit));
  const int64_t producer = producer_[graph_.visit(id).share];
  if (producer >= 0) graph_.visit(producer).consumer = id;
  AddLoads(id);
  const bool sums = graph_.visit(id).kind != VisitKind::kForward;
  for (int position = 0; position < count; ++position) {
    AddPosition(id, position);
    if (sums && Ends(graph_.visit(id), position)) AddReplicaTail(id, position);
  }
  if (graph_.visit(id).kind == VisitKind::kFused) {
    fused_started_ = graph_.visit(id).positions[0].compute;
  }
  return id;
}

void StepBuilder::AddLoads(int64_t visit_id) {
  Visit& visit = graph_.visit(visit_id);
  for (int i = 0; i < static_cast<int>(visit.blocks.size()); ++i) {
    const int block = visit.blocks[i];
    NodeId own = kNoNode;
    NodeId& load =
        i < visit.own_blocks
            ? own
            : kept_loads_.try_emplace({visit.share, visit.keeper, block}, kNoNode).first->second;
    if (load == kNoNode) {
      load = Add(NodeKind::kLoadWeights, visit_id, i, block, {last_update_[block]});
    }
    visit.loads.push_back(load);
  }
}

absl::Status StepBuilder::AddItems(Visit& visit) {
  DeviceMemory& memory = memory_[visit.device];
  const std::vector<Bytes> sizes = LayOutItems(model_, plan_, visit);
  const Bytes total = TotalOf(sizes);
  if (total > memory.resident()) {
    const Bytes kept = kept_.bytes(visit.device);
    return absl::ResourceExhaustedError(absl::StrCat(
        visit.kind == VisitKind::kForward ? "forward" : "backward", " group ", visit.group,
        " (layers ", visit.layers.first, " to ", visit.layers.last, ") needs ",
        FormatBytesExact(total), " resident on device ", visit.device, ", which has ",
        FormatBytesExact(memory.resident() + kept),
        kept.count() > 0 ? absl::StrCat(" and keeps ", FormatBytesExact(kept), " of them") : "",
        ": ", FormatBytesExact(total - memory.resident()), " too little"));
  }
  memory.BeginVisit();
  visit.first_weight = memory.items();
  visit.first_gradient = visit.first_weight + visit.own_blocks;
  for (Bytes size : sizes) memory.AddItem(size);
  visit.end_item = memory.items();
  visit.in = visit.end_item - 2;
  visit.out = visit.end_item - 1;
  visit.loss = visit.in - 1;  // with labels only
  return absl::OkStatus();
}

void StepBuilder::AddPosition(int64_t visit_id, int position) {
  absl::InlinedVector<NodeId, 8> deps;
  AddInputs(visit_id, position, deps);
  const Visit& visit = graph_.visit(visit_id);
  if (position == 0) deps.insert(deps.end(), visit.loads.begin(), visit.loads.end());
  if (position > 0 && visit.kind != VisitKind::kForward && Begins(visit, position)) {
    deps.push_back(visit.last_d2h);  // the gradients of the replica before have left the device
  }
  if (position >= visit.slots) {  // the output slot is free again
    const Visit::Position& before = visit.positions[position - visit.slots];
    deps.insert(deps.end(), before.outs.begin(), before.outs.end());
    deps.insert(deps.end(), before.sends.begin(), before.sends.end());
  }
  const NodeId compute = Add(NodeKind::kCompute, visit_id, position, 0, {});
  for (NodeId dep : deps) graph_.AddDep(compute, dep);
  graph_.visit(visit_id).positions[position].compute = compute;
  AddOutputs(visit_id, position);
}

void StepBuilder::AddInputs(int64_t visit_id, int position, absl::InlinedVector<NodeId, 8>& deps) {
  const Visit& visit = graph_.visit(visit_id);
  const int m = visit.microbatches[position] * visit.span;
  const NodeId slot_free =
      position >= visit.slots ? visit.positions[position - visit.slots].compute : kNoNode;
  auto add = [&](NodeKind kind, NodeId from, int index = 0) {
    deps.push_back(Add(kind, visit_id, position, index, {from, slot_free}));
  };
  for (size_t i = 0; i < visit.inputs.size(); ++i) {
    add(NodeKind::kBatchIn, batch_, static_cast<int>(i));
  }
  if (visit.kept_input >= 0) {
    deps.push_back(StashMaker(visit, visit.kept_input, m));
  } else if (visit.kind == VisitKind::kBackward && visit.has_input) {
    const int boundary = StashBoundary(plan_.backward_groups[visit.group]);
    add(NodeKind::kStashIn, StashMaker(visit, boundary, m));
  }
  const bool chained = visit.kind == VisitKind::kBackward ? visit.has_output_gradient
                                                          : visit.has_input && visit.kept_input < 0;
  if (!chained) return;
  const NodeKind kind =
      visit.kind == VisitKind::kBackward ? NodeKind::kGradientIn : NodeKind::kInputIn;
  const int64_t producer = producer_[visit.share];
  const int at = producer < 0 ? -1 : PositionOf(graph_.visit(producer), m);
  if (at < 0) {  // committed in an earlier generation
    add(kind, kNoNode);
    return;
  }
  const Visit::Position& made = graph_.visit(producer).positions[at];
  const NodeId input = Add(kind, visit_id, position, 0, {made.passed_on, slot_free});
  deps.push_back(input);
  graph_.visit(visit_id).positions[position].input = input;
  if (made.sends.empty()) return;
  const NodeId id = made.sends[m % graph_.visit(producer).span / visit.span];
  Node& send = graph_.node(id);
  send.index = position;
  send.host_in = input;
  graph_.node(input).state = NodeState::kWayOpen;
  deps.push_back(id);
}

NodeId StepBuilder::StashMaker(const Visit& reader, int boundary, int microbatch) const {
  const int kept_on = kept_.StashDevice(boundary, reader.share);
  const NodeKind kind = kept_on >= 0 ? NodeKind::kKeep : NodeKind::kStashOut;
  const int64_t id = forward_visits_[reader.share][boundary - 1];
  if (id < 0) return kNoNode;
  const Visit& visit = graph_.visit(id);
  const int at = PositionOf(visit, microbatch);
  if (at < 0) return kNoNode;  // committed in an earlier generation
  if (kept_on == visit.device) return visit.positions[at].compute;
  for (NodeId out : visit.positions[at].outs) {
    if (graph_.node(out).kind == kind && graph_.node(out).index == boundary) return out;
  }
  return kNoNode;
}

bool StepBuilder::ConsumerRuns(const ShareWork& work, const Visit& visit, int microbatch) const {
  if (visit.kind != VisitKind::kForward) return visit.group > 0 && work.backward[visit.group - 1];
  if (!ReachesEnd(visit)) return false;
  if (visit.group + 1 == static_cast<int>(plan_.forward_groups.size())) return work.backward.back();
  const std::vector<int>& runs = work.forward[visit.group + 1];
  return std::binary_search(runs.begin(), runs.end(), microbatch);
}

// Copies of the outputs of one task: to the arena, to devices that keep them, to the next visit.
void StepBuilder::AddOutputs(int64_t visit_id, int position) {
  const Visit& visit = graph_.visit(visit_id);
  const ShareWork& work = work_->shares[visit.share];
  const LayerGroup* next =
      ConsumerRuns(work, visit, visit.microbatches[position]) ? NextGroup(visit) : nullptr;
  Visit::Position& made = graph_.visit(visit_id).positions[position];
  NodeId optional = kNoNode;
  for (size_t i = 0; i < visit.outputs.size(); ++i) {
    const int boundary = visit.outputs[i], kept_on = kept_.StashDevice(boundary, visit.share);
    if (kept_on >= 0 && !visit.output_kept[i]) {
      made.outs.push_back(AddCopy(NodeKind::kKeep, visit_id, position, boundary));
    }
    const bool last = i + 1 == visit.outputs.size();
    if (last && next != nullptr && DeviceOfGroup(*next, visit) == kept_on) {
      next = nullptr;  // reads it there
    }
    const bool passed_on = last && next != nullptr;
    if (!layout_.IsStashed(boundary) && !passed_on) continue;
    made.outs.push_back(AddCopy(NodeKind::kStashOut, visit_id, position, boundary));
    if (passed_on) made.passed_on = made.outs.back();
    if (!layout_.IsStashed(boundary)) optional = made.outs.back();
  }
  if (visit.has_input_gradient && (eager_ || next != nullptr)) {
    made.passed_on = AddCopy(NodeKind::kBoundaryOut, visit_id, position, visit.layers.first);
    made.outs.push_back(made.passed_on);
    if (!eager_) optional = made.passed_on;
    AddBankRelease(visit_id, made.passed_on);
    graph_.visit(visit_id).last_d2h = made.passed_on;
  }
  if (next != nullptr && DeviceOfGroup(*next, visit) != visit.device) {
    // To the fused group in slices. (Then nothing is optional: its input is stashed or kept.)
    const int slices = next == &plan_.backward_groups.back() ? visit.span : 1;
    for (int slice = 0; slice < slices; ++slice) {
      const NodeId send = AddCopy(NodeKind::kSend, visit_id, position, 0);
      made.sends.push_back(send);
      graph_.node(send).state = NodeState::kWayOpen;
      graph_.node(send).host_out = optional;
    }
    if (optional != kNoNode) graph_.node(optional).state = NodeState::kWayOpen;
  }
  graph_.visit(visit_id).outs_left += static_cast<int>(made.outs.size() + made.sends.size());
}

NodeId StepBuilder::AddCopy(NodeKind kind, int64_t visit_id, int position, int index) {
  const Visit& visit = graph_.visit(visit_id);
  return Add(kind, visit_id, position, index, {visit.positions[position].compute});
}

void StepBuilder::AddBankRelease(int64_t visit_id, NodeId out) {
  // The bank is free once the group that read what is in it has committed all that it makes.
  const int groups = static_cast<int>(plan_.backward_groups.size());
  const int banks = std::min(plan_.boundary_banks, groups - 1);
  const Visit& visit = graph_.visit(visit_id);
  const int maker = visit.group + banks;
  if (maker >= groups || backward_visits_[maker - 1][visit.share] < 0) return;
  graph_.AddDep(out, graph_.visit(backward_visits_[maker - 1][visit.share]).last_d2h);
}

const LayerGroup* StepBuilder::NextGroup(const Visit& visit) const {
  if (visit.kind != VisitKind::kForward) {
    return visit.group > 0 ? &plan_.backward_groups[visit.group - 1] : nullptr;
  }
  const size_t next = static_cast<size_t>(visit.group) + 1;
  return next < plan_.forward_groups.size() ? &plan_.forward_groups[next]
                                            : &plan_.backward_groups.back();
}

void StepBuilder::AddReplicaTail(int64_t visit_id, int position) {
  Visit& visit = graph_.visit(visit_id);
  const NodeId last = visit.positions[position].compute;
  const int replica = visit.microbatches[position] / plan_.replica_microbatches();
  if (visit.kind == VisitKind::kFused) {
    losses_.push_back(Add(NodeKind::kLossOut, visit_id, 0, 0, {last}));
    graph_.node(losses_.back()).replica = replica;
  }
  for (size_t i = 0; i < visit.uses.size(); ++i) {
    visit.last_d2h =
        Add(NodeKind::kGradientOut, visit_id, static_cast<int>(i), visit.uses[i], {last});
    graph_.node(visit.last_d2h).replica = replica;
  }
}

void StepBuilder::AddUpdate(int block, std::vector<NodeId>& after) {
  if (!work_->update[block]) return;
  const NodeId update = AddHost(NodeKind::kUpdate, block, {last_checkpoint_, initialized_});
  for (NodeId dep : after) graph_.AddDep(update, dep);
  after.clear();  // the lane is a FIFO: waiting once is enough
  last_update_[block] = update;
  end_of_updates_[static_cast<size_t>(step_ & 3)] = {step_, update};
}

void StepBuilder::AddHostTasks(const StepWork& work) {
  if (work.scalars) {
    const NodeId scalars = AddHost(NodeKind::kStepScalars, 0, {});
    for (NodeId loss : losses_) graph_.AddDep(scalars, loss);
  }
  std::vector<NodeId> after;  // last copies of the groups seen, not yet waited for
  for (int g = static_cast<int>(plan_.backward_groups.size()) - 1; g >= 0; --g) {
    for (int64_t visit : backward_visits_[g]) {
      if (visit >= 0) after.push_back(graph_.visit(visit).last_d2h);
    }
    // Blocks whose gradients are complete with this group's: a tied one's with its first use.
    for (int block = static_cast<int>(model_.blocks.size()) - 1; block >= 0; --block) {
      const int layer = model_.uses[model_.blocks[block].uses.front()].layer;
      if (!plan_.backward_groups[g].layers.contains(layer)) continue;
      if (eager_) {
        AddUpdate(block, after);
      } else if (plan_.clip && work.scalars) {
        const NodeId norm = AddHost(NodeKind::kNorm, block, {});
        for (NodeId dep : after) graph_.AddDep(norm, dep);
        after.clear();
      }
    }
  }
  if (eager_) return;
  if (plan_.clip && work.scalars) AddHost(NodeKind::kClip, 0, {});
  for (int block = 0; block < static_cast<int>(model_.blocks.size()); ++block) {
    AddUpdate(block, after);
  }
}

}  // namespace harmony
