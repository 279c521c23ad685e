#include "coordinator/dispatch/graph/step_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/dispatch/graph/group_executions.h"

namespace harmony::dispatch {
namespace {

// Of the task that runs a microbatch; -1: none does.
int PositionOf(const GroupExecution& execution, int microbatch) {
  const int task = microbatch / execution.task_microbatches;
  const auto at =
      std::lower_bound(execution.microbatches.begin(), execution.microbatches.end(), task);
  if (at == execution.microbatches.end() || *at != task) return -1;
  return static_cast<int>(at - execution.microbatches.begin());
}

}  // namespace

StepBuilder::StepBuilder(const model::ModelSpec& model, const plan::Plan& plan,
                         const plan::ArenaLayout& layout, const KeptLayout& kept, WorkGraph& graph,
                         std::vector<DeviceMemory>& memory, StepProgress& progress)
    : model_(model),
      plan_(plan),
      layout_(layout),
      kept_(kept),
      graph_(graph),
      memory_(memory),
      progress_(progress),
      lanes_(static_cast<int>(plan.devices.size())),
      queues_(lanes_),
      eager_(plan.update == job::UpdateMode::kEager),
      maker_(model.num_layers() + 1, -1),
      keeper_(model.num_layers() + 1, -1),
      last_update_(model.blocks.size(), kNoNode) {
  end_of_updates_.fill({-1, kNoNode});
  for (size_t f = 0; f < plan.forward_groups.size(); ++f) {
    const model::LayerRange layers = plan.forward_groups[f].layers;
    std::fill(maker_.begin() + layers.first + 1, maker_.begin() + layers.last + 2,
              static_cast<int>(f));
  }
  for (const plan::StashSpec& stash : plan::StashesOf(plan)) {
    if (stash.kept) keeper_[stash.boundary] = stash.group;
  }
}

NodeId StepBuilder::Add(NodeKind kind, int64_t execution, int position, int index,
                        std::initializer_list<NodeId> deps) {
  Node node;
  node.kind = kind;
  const int64_t carrier =
      kind == NodeKind::kPassWeights ? graph_.execution(execution).weights_from : execution;
  const int device = carrier < 0 ? 0 : graph_.execution(carrier).device;
  node.lane = lanes_.IndexOf({TraitsOf(kind).lane, device});
  node.queue = queues_.IndexOf(kind, device);
  node.step = step_;
  node.execution = execution;
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

absl::Status StepBuilder::AddStep(const recovery::StepWork& work, bool checkpoint_first) {
  step_ = work.step;
  work_ = &work;
  status_ = absl::OkStatus();
  batch_ = kNoNode;
  losses_.clear();
  kept_loads_.clear();
  const auto none = [](const std::vector<plan::LayerGroup>& groups) {
    std::vector<std::vector<int64_t>> executions;
    for (const plan::LayerGroup& group : groups) {
      executions.emplace_back(group.devices.num_shards(), -1);
    }
    return executions;
  };
  forward_executions_ = none(plan_.forward_groups);
  backward_executions_ = none(plan_.backward_groups);
  if (work.load_batch) {
    batch_ = AddHost(NodeKind::kLoadBatch, 0, {fused_started_});
  }
  if (checkpoint_first) AddCheckpoint(work.step - 1);
  for (int f = 0; f < static_cast<int>(plan_.forward_groups.size()); ++f) {
    const int shards = plan_.forward_groups[f].devices.num_shards();
    for (int shard = 0; shard < shards; ++shard) AddForward(f, shard);
    AddTasks(forward_executions_[f]);
  }
  for (int g = static_cast<int>(plan_.backward_groups.size()) - 1; g >= 0; --g) {
    const int shards = plan_.backward_groups[g].devices.num_shards();
    for (int shard = 0; shard < shards; ++shard) AddBackward(g, shard);
    AddTasks(backward_executions_[g]);
  }
  AddHostTasks(work);
  return status_;
}

void StepBuilder::AddForward(int group, int shard) {
  const recovery::ForwardWork& work = work_->forward[group][shard];
  if (work.tasks.empty()) return;
  GroupExecution execution =
      PlannedExecution(model_, plan_, ExecutionKind::kForward, group, shard, work.last);
  execution.microbatches.assign(work.tasks.begin(), work.tasks.end());
  forward_executions_[group][shard] = BeginExecution(std::move(execution));
}

bool StepBuilder::ReachesEnd(const GroupExecution& execution) const {
  return execution.layers.last == plan_.forward_groups[execution.group].layers.last;
}

void StepBuilder::AddBackward(int group, int shard) {
  if (!work_->backward[group][shard]) return;
  const bool fused = group + 1 == static_cast<int>(plan_.backward_groups.size());
  GroupExecution execution = PlannedExecution(
      model_, plan_, fused ? ExecutionKind::kFused : ExecutionKind::kBackward, group, shard);
  backward_executions_[group][shard] = BeginExecution(std::move(execution));
}

int64_t StepBuilder::ProducerOf(const GroupExecution& execution, int microbatch) const {
  if (execution.kind == ExecutionKind::kBackward) {
    return BackwardOf(execution.group + 1, microbatch);
  }
  const int before = execution.kind == ExecutionKind::kForward
                         ? execution.group - 1
                         : static_cast<int>(plan_.forward_groups.size()) - 1;
  if (before < 0) return -1;
  const int64_t id = ForwardOf(before, microbatch);
  return id >= 0 && ReachesEnd(graph_.execution(id)) ? id : -1;
}

int64_t StepBuilder::BeginExecution(GroupExecution execution) {
  execution.step = step_;
  const int count = static_cast<int>(execution.microbatches.size());
  execution.slots = std::min(plan_.stream_slots, count);
  execution.compute_left = count;
  execution.positions.resize(count);
  if (absl::Status status = AddItems(execution); !status.ok() && status_.ok()) status_ = status;
  const int64_t id = graph_.AddExecution(std::move(execution));
  AddLoads(id);
  return id;
}

void StepBuilder::AddTasks(const std::vector<int64_t>& shards) {
  for (int64_t id : shards) {
    if (id < 0) continue;
    const ExecutionKind kind = graph_.execution(id).kind;
    const int count = static_cast<int>(graph_.execution(id).positions.size());
    for (int position = 0; position < count; ++position) {
      AddPosition(id, position);
      const bool sums = kind != ExecutionKind::kForward;
      if (sums && Ends(graph_.execution(id), position)) AddPartTail(id, position);
    }
    if (kind == ExecutionKind::kFused) fused_started_ = graph_.execution(id).positions[0].compute;
  }
}

void StepBuilder::AddLoads(int64_t execution_id) {
  GroupExecution& execution = graph_.execution(execution_id);
  execution.weights_from = WeightSource(execution);
  for (int i = 0; i < static_cast<int>(execution.blocks.size()); ++i) {
    const int block = execution.blocks[i];
    NodeId own = kNoNode;
    NodeId& load =
        i < execution.own_blocks
            ? own
            : kept_loads_.try_emplace({execution.shard, execution.keeper, block}, kNoNode)
                  .first->second;
    if (load == kNoNode) load = AddLoad(execution_id, i);
    execution.loads.push_back(load);
  }
}

NodeId StepBuilder::AddLoad(int64_t execution_id, int position) {
  const GroupExecution& taker = graph_.execution(execution_id);
  const int block = taker.blocks[position];
  if (taker.weights_from >= 0) {
    GroupExecution& source = graph_.execution(taker.weights_from);
    const auto there = std::find(source.blocks.begin(), source.blocks.end(), block);
    if (there != source.blocks.end()) {
      ++source.passes_left;
      return Add(NodeKind::kPassWeights, execution_id, position, block,
                 {source.loads[there - source.blocks.begin()]});
    }
  }
  return Add(NodeKind::kLoadWeights, execution_id, position, block, {last_update_[block]});
}

int64_t StepBuilder::WeightSource(const GroupExecution& taker) const {
  const bool forward = taker.kind == ExecutionKind::kForward;
  const plan::LayerGroup& group = PlannedGroup(plan_, taker.kind, taker.group);
  const int peer = plan::WeightPeer(plan_, group, taker.shard);
  if (peer < 0) return -1;
  return (forward ? forward_executions_ : backward_executions_)[taker.group][peer];
}

absl::Status StepBuilder::AddItems(GroupExecution& execution) {
  DeviceMemory& memory = memory_[execution.device];
  const ItemSizes sizes = LayOutItems(model_, plan_, execution);
  const Bytes total = TotalOf(sizes);
  if (total > memory.resident()) {
    const Bytes kept = kept_.bytes(execution.device);
    return absl::ResourceExhaustedError(absl::StrCat(
        execution.kind == ExecutionKind::kForward ? "forward" : "backward", " group ",
        execution.group, " (layers ", execution.layers.first, " to ", execution.layers.last,
        ") needs ", FormatBytesExact(total), " resident on device ", execution.device,
        ", which has ", FormatBytesExact(memory.resident() + kept),
        kept.count() > 0 ? absl::StrCat(" and keeps ", FormatBytesExact(kept), " of them") : "",
        ": ", FormatBytesExact(total - memory.resident()), " too little"));
  }
  memory.BeginExecution();
  for (int64_t* item : {&execution.first_weight, &execution.loss, &execution.in, &execution.out,
                        &execution.first_gradient, &execution.waiting_sums, &execution.end_item}) {
    *item += memory.items();
  }
  for (Bytes size : sizes) memory.AddItem(size);
  return absl::OkStatus();
}

void StepBuilder::AddPosition(int64_t execution_id, int position) {
  absl::InlinedVector<NodeId, 8> deps;
  AddInputs(execution_id, position, deps);
  const GroupExecution& execution = graph_.execution(execution_id);
  if (position == 0) deps.insert(deps.end(), execution.loads.begin(), execution.loads.end());
  if (position >= execution.slots) {  // the output slot is free again
    const GroupExecution::Position& before = execution.positions[position - execution.slots];
    deps.insert(deps.end(), before.outs.begin(), before.outs.end());
    deps.insert(deps.end(), before.sends.begin(), before.sends.end());
  }
  const NodeId compute = Add(NodeKind::kCompute, execution_id, position, 0, {});
  for (NodeId dep : deps) graph_.AddDep(compute, dep);
  if (execution.kind != ExecutionKind::kForward) {
    if (AwaitsPartBefore(plan_, execution, execution.microbatches[position])) {
      graph_.node(compute).gradient_copies = execution.last_sum;
    } else if (execution.sum.taken > 0 && Ends(execution, position)) {
      graph_.node(compute).gradient_copies = SumsTaken(execution);
    }
  }
  graph_.execution(execution_id).positions[position].compute = compute;
  AddOutputs(execution_id, position);
}

void StepBuilder::AddInputs(int64_t execution_id, int position,
                            absl::InlinedVector<NodeId, 8>& deps) {
  const GroupExecution& execution = graph_.execution(execution_id);
  const int m = execution.microbatches[position] * execution.task_microbatches;
  const NodeId slot_free = position >= execution.slots
                               ? execution.positions[position - execution.slots].compute
                               : kNoNode;
  auto add = [&](NodeKind kind, NodeId from, int index = 0) {
    deps.push_back(Add(kind, execution_id, position, index, {from, slot_free}));
  };
  for (size_t i = 0; i < execution.inputs.size(); ++i) {
    add(NodeKind::kBatchIn, batch_, static_cast<int>(i));
  }
  if (execution.input_kept) {
    deps.push_back(StashMaker(execution.input, m));
  } else if (execution.kind == ExecutionKind::kBackward && execution.has_input()) {
    add(NodeKind::kStashIn, StashMaker(execution.input, m));
  }
  if (!execution.chained()) return;
  const NodeKind kind =
      execution.kind == ExecutionKind::kBackward ? NodeKind::kGradientIn : NodeKind::kInputIn;
  const int64_t producer = ProducerOf(execution, m);
  const int at = producer < 0 ? -1 : PositionOf(graph_.execution(producer), m);
  if (at < 0) {  // committed in an earlier generation
    add(kind, kNoNode);
    return;
  }
  GroupExecution::Position& made = graph_.execution(producer).positions[at];
  made.consumer = execution_id;
  const NodeId input = Add(kind, execution_id, position, 0, {made.passed_on, slot_free});
  deps.push_back(input);
  graph_.execution(execution_id).positions[position].input = input;
  if (made.sends.empty()) return;
  const NodeId id =
      made.sends[m % graph_.execution(producer).task_microbatches / execution.task_microbatches];
  Node& send = graph_.node(id);
  send.index = position;
  send.host_in = input;
  graph_.node(input).state = NodeState::kWayOpen;
  deps.push_back(id);
}

NodeId StepBuilder::StashMaker(int boundary, int microbatch) const {
  const int kept_on = kept_.StashDevice(boundary, microbatch);
  const NodeKind kind = kept_on >= 0 ? NodeKind::kKeep : NodeKind::kStashOut;
  const int64_t id = maker_[boundary] < 0 ? -1 : ForwardOf(maker_[boundary], microbatch);
  if (id < 0 || graph_.execution(id).layers.last + 1 < boundary) return kNoNode;
  const GroupExecution& execution = graph_.execution(id);
  const int at = PositionOf(execution, microbatch);
  if (at < 0) return kNoNode;  // committed in an earlier generation
  if (kept_on == execution.device) return execution.positions[at].compute;
  for (NodeId out : execution.positions[at].outs) {
    if (graph_.node(out).kind == kind && graph_.node(out).index == boundary) return out;
  }
  return kNoNode;
}

bool StepBuilder::ConsumerRuns(const GroupExecution& execution, int position) const {
  const int task = execution.microbatches[position], m = task * execution.task_microbatches;
  const auto backward_runs = [&](int group) {
    return work_->backward[group][plan::ShardWith(plan_, plan_.backward_groups[group], m)];
  };
  if (execution.kind != ExecutionKind::kForward) {
    return execution.group > 0 && backward_runs(execution.group - 1);
  }
  if (!ReachesEnd(execution)) return false;
  const int next = execution.group + 1;
  if (next == static_cast<int>(plan_.forward_groups.size())) {
    return backward_runs(static_cast<int>(plan_.backward_groups.size()) - 1);
  }
  const std::vector<int>& runs =
      work_->forward[next][plan::ShardWith(plan_, plan_.forward_groups[next], m)].tasks;
  return std::binary_search(runs.begin(), runs.end(), task);
}

bool StepBuilder::ReadsKept(const plan::LayerGroup& reader, int boundary, int microbatch) const {
  const int keeper = keeper_[boundary];
  if (keeper < 0) return false;
  const int shard = plan::ShardWith(plan_, reader, microbatch);
  return plan::RunsOnDeviceOf(plan_, plan_.backward_groups[keeper],
                              plan::ShardOf(plan_, reader, shard));
}

// Copies of the outputs of one task: to the arena, to devices that keep them, to the next
// execution.
void StepBuilder::AddOutputs(int64_t execution_id, int position) {
  const GroupExecution& execution = graph_.execution(execution_id);
  const int m = execution.microbatches[position] * execution.task_microbatches;
  const plan::LayerGroup* next = ConsumerRuns(execution, position) ? NextGroup(execution) : nullptr;
  GroupExecution::Position& made = graph_.execution(execution_id).positions[position];
  NodeId optional = kNoNode;
  for (size_t i = 0; i < execution.outputs.size(); ++i) {
    const int boundary = execution.outputs[i];
    if (kept_.StashDevice(boundary, m) >= 0 && !execution.output_kept[i]) {
      made.outs.push_back(AddCopy(NodeKind::kKeep, execution_id, position, boundary));
    }
    const bool last = i + 1 == execution.outputs.size();
    if (last && next != nullptr && ReadsKept(*next, boundary, m)) next = nullptr;
    const bool passed_on = last && next != nullptr;
    if (!layout_.IsStashed(boundary) && !passed_on) continue;
    made.outs.push_back(AddCopy(NodeKind::kStashOut, execution_id, position, boundary));
    if (passed_on) made.passed_on = made.outs.back();
    if (!layout_.IsStashed(boundary)) optional = made.outs.back();
  }
  if (execution.has_input_gradient && (eager_ || next != nullptr)) {
    made.passed_on =
        AddCopy(NodeKind::kBoundaryOut, execution_id, position, execution.layers.first);
    made.outs.push_back(made.passed_on);
    if (!eager_) optional = made.passed_on;
    AddBankRelease(execution, m, made.passed_on);
    graph_.execution(execution_id).last_out = made.passed_on;
  }
  if (next != nullptr && plan::DeviceOf(plan_, *next, m) != execution.device) {
    // To the fused group in slices. (Then nothing is optional: its input is stashed or kept.)
    const int slices = next == &plan_.backward_groups.back() ? execution.task_microbatches : 1;
    for (int slice = 0; slice < slices; ++slice) {
      const NodeId send = AddCopy(NodeKind::kSend, execution_id, position, 0);
      made.sends.push_back(send);
      graph_.node(send).state = NodeState::kWayOpen;
      graph_.node(send).host_out = optional;
    }
    if (optional != kNoNode) graph_.node(optional).state = NodeState::kWayOpen;
  }
  graph_.execution(execution_id).outs_left +=
      static_cast<int>(made.outs.size() + made.sends.size());
}

NodeId StepBuilder::AddCopy(NodeKind kind, int64_t execution_id, int position, int index) {
  const GroupExecution& execution = graph_.execution(execution_id);
  return Add(kind, execution_id, position, index, {execution.positions[position].compute});
}

void StepBuilder::AddBankRelease(const GroupExecution& execution, int microbatch, NodeId out) {
  const int groups = static_cast<int>(plan_.backward_groups.size());
  const int maker = execution.group + plan_.banks();
  if (maker >= groups) return;
  // The microbatch's place in the bank is free once the shard that read what is in it has committed
  // all that it makes, and so has the one that made it: the reader may have got it from the maker's
  // device, long before the maker's copy into the bank; and what is uncommitted of the maker, or of
  // a shard that adds up gradients with either, would have it run again.
  for (const int group : {maker, maker - 1}) {
    const int64_t before = BackwardOf(group, microbatch);
    if (before < 0) continue;
    for (NodeId commit : LastCommits(graph_.execution(before))) graph_.AddDep(out, commit);
  }
}

const plan::LayerGroup* StepBuilder::NextGroup(const GroupExecution& execution) const {
  if (execution.kind != ExecutionKind::kForward) {
    return execution.group > 0 ? &plan_.backward_groups[execution.group - 1] : nullptr;
  }
  const size_t next = static_cast<size_t>(execution.group) + 1;
  return next < plan_.forward_groups.size() ? &plan_.forward_groups[next]
                                            : &plan_.backward_groups.back();
}

}  // namespace harmony::dispatch
