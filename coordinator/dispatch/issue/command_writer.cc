#include "coordinator/dispatch/issue/command_writer.h"

#include <algorithm>
#include <utility>

#include "common/model/model_sizes.h"
#include "coordinator/dispatch/graph/group_executions.h"

namespace harmony::dispatch {

CommandWriter::CommandWriter(const model::ModelSpec& model, const plan::Plan& plan,
                             const plan::ArenaLayout& layout, const KeptLayout& kept,
                             const command::ObjectTableLayout& table, const WorkGraph& graph,
                             const std::vector<DeviceMemory>& memory, ArenaRecords& records)
    : model_(model),
      plan_(plan),
      layout_(layout),
      kept_(kept),
      table_(table),
      graph_(graph),
      memory_(memory),
      records_(records),
      parameters_(command::ParameterOffsets(model)) {}

constexpr CommandWriter::Writer CommandWriter::kWriters[] = {
    {NodeKind::kInitialize, &CommandWriter::Initialize},
    {NodeKind::kLoadBatch, &CommandWriter::LoadBatch},
    {NodeKind::kLoadWeights, &CommandWriter::LoadWeights},
    {NodeKind::kPassWeights, &CommandWriter::PassWeights},
    {NodeKind::kBatchIn, &CommandWriter::BatchIn},
    {NodeKind::kStashIn, &CommandWriter::InputIn},
    {NodeKind::kInputIn, &CommandWriter::InputIn},
    {NodeKind::kGradientIn, &CommandWriter::GradientIn},
    {NodeKind::kCompute, &CommandWriter::Compute},
    {NodeKind::kSend, &CommandWriter::Send},
    {NodeKind::kStashOut, &CommandWriter::StashOut},
    {NodeKind::kKeep, &CommandWriter::Keep},
    {NodeKind::kBoundaryOut, &CommandWriter::BoundaryOut},
    {NodeKind::kLossOut, &CommandWriter::LossOut},
    {NodeKind::kGradientOut, &CommandWriter::GradientOut},
    {NodeKind::kPassSum, &CommandWriter::PassSum},
    {NodeKind::kStepScalars, &CommandWriter::StepScalars},
    {NodeKind::kNorm, &CommandWriter::Norm},
    {NodeKind::kClip, &CommandWriter::Clip},
    {NodeKind::kUpdate, &CommandWriter::Update},
    {NodeKind::kCheckpoint, &CommandWriter::Checkpoint},
};

void CommandWriter::WriteBody(const Node& node, Bytes gradient_slot, bool recovery,
                              command::Command& command, Users& after) {
  static_assert(IsTableOf<kNodeKinds>(kWriters));
  Placing placing{command.header.lane, command.header.signal_value, gradient_slot, after};
  command.body = (this->*kWriters[static_cast<size_t>(node.kind)].write)(node, placing);
  // Copies between the host and a device count as moved again after a fault.
  auto* const copy = std::get_if<command::Transfer>(&command.body);
  if (recovery && copy != nullptr && (copy->source.device < 0 || copy->destination.device < 0)) {
    copy->traffic = command::TrafficClass::kRecovery;
  }
}

BindingPlaces CommandWriter::PlacesOf(const GroupExecution& execution) const {
  return {execution, kept_, memory_[execution.device]};
}

Bytes CommandWriter::Hidden(int boundary) const {
  return model::BoundaryBytes(model_, boundary, plan_.microbatch_size);
}

Bytes CommandWriter::HiddenGradient(int boundary) const {
  return model::BoundaryGradientBytes(model_, boundary, plan_.microbatch_size);
}

CommandWriter::Body CommandWriter::Compute(const Node& node, Placing& /*placing*/) {
  const GroupExecution& execution = graph_.execution(node.execution);
  const BindingPlaces places = PlacesOf(execution);
  const int position = node.position, m = execution.microbatches[position];
  command::ComputeTask task;
  task.kind = TaskOf(execution.kind);
  task.layers = execution.layers;
  task.microbatch = m;
  task.samples = plan_.microbatch_size * execution.task_microbatches;
  task.weights.reserve(execution.references.size());
  for (int reference : execution.references) {
    const auto at = std::find(execution.blocks.begin(), execution.blocks.end(),
                              model_.references[reference].block);
    if (at == execution.blocks.end()) continue;
    if (execution.kind == ExecutionKind::kBackward &&
        !model_.references[reference].needed_in_backward)
      continue;
    task.weights.push_back(
        {reference, places.Weight(static_cast<int>(at - execution.blocks.begin()))});
  }
  if (execution.kind != ExecutionKind::kForward) {
    const int first = FirstBuffer(execution, m);
    task.gradients.reserve(execution.references.size());
    for (int i = 0; i < static_cast<int>(execution.references.size()); ++i) {
      task.gradients.push_back({execution.references[i], places.Gradient(i, first)});
    }
    task.gradient_stride = first == 0 ? places.GradientStride() : places.GradientStride() * -1;
    task.gradient_waits = GradientWaits(node);
    if (!task.gradient_waits.empty()) task.awaited = AwaitedBy(node, execution);
    const plan::ShardSum& sum = execution.sum;
    const int of_replica = plan_.replica_microbatches();
    const int taken = sum.microbatches * ((1 << sum.taken) - 1);
    task.replica = (taken + m % sum.microbatches) / of_replica;
    task.first_microbatch = m % of_replica == 0;
    task.last_microbatch = (m + 1) % of_replica == 0;
    task.stores_gradients = (m + 1) % sum.microbatches == 0 && sum.given_to < 0;
    task.total_labels = plan_.global_batch() * model_.labels_per_sample;
  }
  if (execution.has_input()) task.input = places.Input(position);
  if (execution.activations >= 0) task.kept = kept_.Activations(execution.activations, m);
  for (size_t i = 0; i < execution.inputs.size(); ++i) {
    task.inputs.push_back({execution.inputs[i], places.In(position, execution.inputs_at[i])});
  }
  if (execution.has_loss()) task.loss = places.Loss(m - execution.shard_first);
  if (execution.has_output_gradient()) {
    task.output_gradient = places.In(position, execution.output_gradient_at);
  }
  for (int i = 0; i < static_cast<int>(execution.outputs.size()); ++i) {
    task.outputs.push_back({execution.outputs[i], places.Output(position, i)});
  }
  if (execution.has_input_gradient) task.input_gradient = places.Out(position, Bytes(0));
  return task;
}

std::vector<command::SemaphoreWait> CommandWriter::GradientWaits(const Node& node) const {
  std::vector<command::SemaphoreWait> waits;
  if (node.gradient_copies == kNoNode) return waits;
  const int count = static_cast<int>(graph_.execution(node.execution).references.size());
  for (int i = 0; i < count; ++i) {
    const Node& copy = graph_.node(CopyOf(node.gradient_copies, i));
    waits.push_back({static_cast<uint32_t>(copy.lane), copy.value});
  }
  return waits;
}

command::Transfer CommandWriter::In(const Node& node, Bytes within_slot, Bytes arena, Bytes size,
                                    command::TrafficClass traffic,
                                    const command::ObjectKey& from) const {
  const GroupExecution& execution = graph_.execution(node.execution);
  command::Transfer copy;
  copy.source = {-1, arena};
  copy.destination = {execution.device, PlacesOf(execution).In(node.position, within_slot)};
  copy.size = size;
  copy.traffic = traffic;
  copy.expect = command::Expect{Record(from), static_cast<uint64_t>(node.step) + 1};
  return copy;
}

command::Transfer CommandWriter::Out(const GroupExecution& execution, Bytes device_offset,
                                     Bytes arena, Bytes size, command::TrafficClass traffic,
                                     const command::ObjectKey& key, Placing& placing) {
  command::Transfer copy;
  copy.source = {execution.device, device_offset};
  copy.destination = {-1, arena};
  copy.size = size;
  copy.traffic = traffic;
  const int record = Record(key);
  copy.commit = command::Commit{record, key, static_cast<uint64_t>(execution.step) + 1};
  if (key.kind == command::ObjectKind::kStash || key.kind == command::ObjectKind::kLoss) {
    copy.retire = {record};  // these have slots of their own
  } else {
    copy.retire =
        records_.Place(record, arena, arena + size, placing.lane, placing.value, placing.after);
  }
  return copy;
}

// ---- Copies to a device ----

CommandWriter::Body CommandWriter::LoadWeights(const Node& node, Placing& /*placing*/) {
  const GroupExecution& execution = graph_.execution(node.execution);
  const command::ObjectKey key{command::ObjectKind::kParameter, node.index, 0};
  command::Transfer copy;
  copy.source = {-1, parameters_[node.index]};
  copy.destination = {execution.device, PlacesOf(execution).Weight(node.position)};
  copy.size = model_.blocks[node.index].weight_bytes;
  copy.expect = command::Expect{Record(key), static_cast<uint64_t>(node.step)};
  return copy;
}

CommandWriter::Body CommandWriter::BatchIn(const Node& node, Placing& /*placing*/) {
  const GroupExecution& execution = graph_.execution(node.execution);
  const int m = FirstMicrobatch(execution, node.position), parity = ParityOf(node);
  const int input = execution.inputs[node.index];
  return In(node, execution.inputs_at[node.index], layout_.Input(parity, input, m),
            layout_.input_bytes(input) * execution.task_microbatches,
            command::TrafficClass::kTokens, {command::ObjectKind::kBatch, parity, 0});
}

// A task's input: that of a backward is its stash.
CommandWriter::Body CommandWriter::InputIn(const Node& node, Placing& /*placing*/) {
  const GroupExecution& execution = graph_.execution(node.execution);
  const bool stash = node.kind == NodeKind::kStashIn;
  const int m = FirstMicrobatch(execution, node.position), boundary = execution.input;
  return In(node, execution.input_at, layout_.Stash(boundary, m),
            Hidden(boundary) * execution.task_microbatches,
            stash ? command::TrafficClass::kStash : command::TrafficClass::kBoundary,
            {command::ObjectKind::kStash, boundary, m / plan_.microbatches_per_forward_task});
}

CommandWriter::Body CommandWriter::GradientIn(const Node& node, Placing& /*placing*/) {
  const GroupExecution& execution = graph_.execution(node.execution);
  const int m = FirstMicrobatch(execution, node.position), boundary = execution.layers.last + 1;
  return In(node, execution.output_gradient_at,
            layout_.BoundaryGradient(BoundaryBank(plan_, execution.group + 1), m),
            HiddenGradient(boundary), command::TrafficClass::kBoundary,
            {command::ObjectKind::kBoundaryGradient, boundary, m});
}

// ---- Copies between devices ----

CommandWriter::Body CommandWriter::Send(const Node& node, Placing& /*placing*/) {
  const GroupExecution& execution = graph_.execution(node.execution);
  const GroupExecution& consumer = graph_.ConsumerOf(node);
  const bool gradient = execution.kind != ExecutionKind::kForward;
  const int output = static_cast<int>(execution.outputs.size()) - 1;
  const Bytes hidden =
      gradient ? HiddenGradient(execution.layers.first) : Hidden(execution.outputs[output]);
  const int slice = FirstMicrobatch(consumer, node.index) % execution.task_microbatches;
  const BindingPlaces from = PlacesOf(execution), to = PlacesOf(consumer);
  command::Transfer copy;
  copy.source = {execution.device, gradient ? from.Out(node.position, Bytes(0))
                                            : from.Output(node.position, output) + hidden * slice};
  copy.destination = {consumer.device, to.In(node.index, gradient ? consumer.output_gradient_at
                                                                  : consumer.input_at)};
  copy.size = hidden * consumer.task_microbatches;
  copy.traffic = command::TrafficClass::kBoundary;
  return copy;
}

CommandWriter::Body CommandWriter::PassWeights(const Node& node, Placing& /*placing*/) {
  const GroupExecution& execution = graph_.execution(node.execution);
  const GroupExecution& source = graph_.execution(execution.weights_from);
  const auto there = std::find(source.blocks.begin(), source.blocks.end(), node.index);
  command::Transfer copy;
  copy.source = {source.device,
                 PlacesOf(source).Weight(static_cast<int>(there - source.blocks.begin()))};
  copy.destination = {execution.device, PlacesOf(execution).Weight(node.position)};
  copy.size = model_.blocks[node.index].weight_bytes;
  copy.traffic = command::TrafficClass::kBoundary;
  return copy;
}

CommandWriter::Body CommandWriter::PassSum(const Node& node, Placing& /*placing*/) {
  const GroupExecution& execution = graph_.execution(node.execution);
  const GroupExecution& taker = graph_.execution(execution.taker);
  const int buffer = TakenBuffer(taker, execution);
  const Bytes accumulator = model_.blocks[model_.references[node.index].block].accumulator_bytes;
  command::Transfer copy;
  copy.source = {execution.device, PlacesOf(execution).Gradient(node.position)};
  copy.destination = {taker.device, PlacesOf(taker).Gradient(node.position, buffer)};
  copy.size = accumulator;
  copy.traffic = command::TrafficClass::kBoundary;
  return copy;
}

CommandWriter::Body CommandWriter::Keep(const Node& node, Placing& /*placing*/) {
  const GroupExecution& execution = graph_.execution(node.execution);
  command::Transfer copy;
  copy.source = {execution.device,
                 PlacesOf(execution).Output(node.position, OutputNumber(execution, node.index))};
  const int m = FirstMicrobatch(execution, node.position);
  copy.destination = {kept_.StashDevice(node.index, m), kept_.Stash(node.index, m)};
  copy.size = Hidden(node.index) * execution.task_microbatches;
  copy.traffic = command::TrafficClass::kBoundary;
  return copy;
}

// ---- Copies of what a task has made, into its object ----

CommandWriter::Body CommandWriter::StashOut(const Node& node, Placing& placing) {
  const GroupExecution& execution = graph_.execution(node.execution);
  const int m = execution.microbatches[node.position];
  return Out(execution,
             PlacesOf(execution).Output(node.position, OutputNumber(execution, node.index)),
             layout_.Stash(node.index, m * execution.task_microbatches),
             Hidden(node.index) * execution.task_microbatches,
             layout_.IsStashed(node.index) ? command::TrafficClass::kStash
                                           : command::TrafficClass::kBoundary,
             {command::ObjectKind::kStash, node.index, m}, placing);
}

CommandWriter::Body CommandWriter::BoundaryOut(const Node& node, Placing& placing) {
  const GroupExecution& execution = graph_.execution(node.execution);
  const int m = execution.microbatches[node.position];
  return Out(execution, PlacesOf(execution).Out(node.position, Bytes(0)),
             layout_.BoundaryGradient(BoundaryBank(plan_, execution.group), m),
             HiddenGradient(node.index),
             plan_.update == job::UpdateMode::kEager ? command::TrafficClass::kBoundaryCommit
                                                     : command::TrafficClass::kBoundary,
             {command::ObjectKind::kBoundaryGradient, node.index, m}, placing);
}

CommandWriter::Body CommandWriter::LossOut(const Node& node, Placing& placing) {
  const GroupExecution& execution = graph_.execution(node.execution);
  const int first = node.part * plan_.loss_microbatches() - execution.shard_first;
  return Out(execution, PlacesOf(execution).Loss(first), layout_.Loss(node.part),
             layout_.loss_bytes(), command::TrafficClass::kLoss,
             {command::ObjectKind::kLoss, 0, node.part}, placing);
}

CommandWriter::Body CommandWriter::GradientOut(const Node& node, Placing& placing) {
  const GroupExecution& execution = graph_.execution(node.execution);
  const int part = plan_.part_microbatches(plan_.backward_groups[execution.group]);
  const int buffer = FirstBuffer(execution, (node.part + 1) * part - 1);
  return Out(execution, PlacesOf(execution).Gradient(node.position, buffer), placing.gradient_slot,
             model_.blocks[model_.references[node.index].block].gradient_bytes,
             command::TrafficClass::kGradients,
             {command::ObjectKind::kGradient, node.index, node.part}, placing);
}

// ---- Tasks of the host ----

CommandWriter::Body CommandWriter::Initialize(const Node& /*node*/, Placing& /*placing*/) {
  return command::HostTask{command::HostTaskKind::kInitialize, -1, {}, {}};
}

CommandWriter::Body CommandWriter::LoadBatch(const Node& node, Placing& /*placing*/) {
  return command::HostTask{
      command::HostTaskKind::kLoadBatch, -1, layout_.Batch(ParityOf(node)), {}};
}

CommandWriter::Body CommandWriter::StepScalars(const Node& node, Placing& /*placing*/) {
  return command::HostTask{
      command::HostTaskKind::kStepScalars, -1, layout_.Scalars(ParityOf(node)), {}};
}

CommandWriter::Body CommandWriter::Norm(const Node& node, Placing& /*placing*/) {
  return command::HostTask{command::HostTaskKind::kNorm, node.index, layout_.Norm(node.index),
                           GradientRecords(node.index)};
}

CommandWriter::Body CommandWriter::Clip(const Node& node, Placing& /*placing*/) {
  return command::HostTask{command::HostTaskKind::kClip, -1, layout_.Scalars(ParityOf(node)), {}};
}

CommandWriter::Body CommandWriter::Update(const Node& node, Placing& /*placing*/) {
  return command::HostTask{command::HostTaskKind::kUpdate, node.index,
                           layout_.Scalars(ParityOf(node)), GradientRecords(node.index)};
}

CommandWriter::Body CommandWriter::Checkpoint(const Node& /*node*/, Placing& /*placing*/) {
  return command::HostTask{command::HostTaskKind::kCheckpoint, -1, {}, {}};
}

// In the order in which they are summed: last reference first, of each its parts ascending.
std::vector<int> CommandWriter::GradientRecords(int block) const {
  std::vector<int> records;
  const std::vector<int>& references = model_.blocks[block].references;
  const int parts = plan::PartsOfBlock(model_, plan_, block);
  for (auto reference = references.rbegin(); reference != references.rend(); ++reference) {
    for (int part = 0; part < parts; ++part) {
      records.push_back(Record({command::ObjectKind::kGradient, *reference, part}));
    }
  }
  return records;
}

}  // namespace harmony::dispatch
