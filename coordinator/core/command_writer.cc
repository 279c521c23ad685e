#include "coordinator/core/command_writer.h"

#include <algorithm>
#include <utility>

#include "common/model/model_sizes.h"
#include "coordinator/core/visits.h"

namespace harmony {

CommandWriter::CommandWriter(const ModelSpec& model, const Plan& plan, const ArenaLayout& layout,
                             const KeptLayout& kept, const ObjectTableLayout& table,
                             const WorkGraph& graph, const std::vector<DeviceMemory>& memory,
                             ArenaRecords& records)
    : model_(model),
      plan_(plan),
      layout_(layout),
      kept_(kept),
      table_(table),
      graph_(graph),
      memory_(memory),
      records_(records),
      parameters_(ParameterOffsets(model)) {}

void CommandWriter::WriteBody(const Node& node, Bytes gradient_slot, bool recovery,
                              Command& command, Users& after) {
  Placing placing{command.header.lane, command.header.signal_value, after};
  // Copies between the host and a device count as moved again after a fault.
  const auto copies = [&](Transfer copy) {
    if (recovery) copy.traffic = TrafficClass::kRecovery;
    command.body = std::move(copy);
  };
  switch (node.kind) {
    case NodeKind::kInitialize:
      command.body = HostTask{HostTaskKind::kInitialize, -1, {}, {}};
      return;
    case NodeKind::kLoadBatch:
      command.body = HostTask{HostTaskKind::kLoadBatch, -1, layout_.Batch(ParityOf(node)), {}};
      return;
    case NodeKind::kLoadWeights:
      return copies(LoadWeights(node));
    case NodeKind::kBatchIn:
      return copies(BatchIn(node));
    case NodeKind::kStashIn:
    case NodeKind::kInputIn:
      return copies(InputIn(node));
    case NodeKind::kGradientIn:
      return copies(GradientIn(node));
    case NodeKind::kCompute:
      command.body = Compute(node);
      return;
    case NodeKind::kSend:
      command.body = Send(node);
      return;
    case NodeKind::kKeep:
      command.body = Keep(node);
      return;
    case NodeKind::kStashOut:
      return copies(StashOut(node, placing));
    case NodeKind::kBoundaryOut:
      return copies(BoundaryOut(node, placing));
    case NodeKind::kLossOut:
      return copies(LossOut(node, placing));
    case NodeKind::kGradientOut:
      return copies(GradientOut(node, gradient_slot, placing));
    case NodeKind::kStepScalars:
      command.body = HostTask{HostTaskKind::kStepScalars, -1, layout_.Scalars(ParityOf(node)), {}};
      return;
    case NodeKind::kNorm:
      command.body = HostTask{HostTaskKind::kNorm, node.index, layout_.Norm(node.index),
                              GradientRecords(node.index)};
      return;
    case NodeKind::kClip:
      command.body = HostTask{HostTaskKind::kClip, -1, layout_.Scalars(ParityOf(node)), {}};
      return;
    case NodeKind::kUpdate:
      command.body = HostTask{HostTaskKind::kUpdate, node.index, layout_.Scalars(ParityOf(node)),
                              GradientRecords(node.index)};
      return;
    case NodeKind::kCheckpoint:
      command.body = HostTask{HostTaskKind::kCheckpoint, -1, {}, {}};
      return;
  }
}

BindingPlaces CommandWriter::PlacesOf(const Visit& visit) const {
  return {visit, kept_, memory_[visit.device]};
}

Bytes CommandWriter::Hidden(int boundary) const {
  return BoundaryBytes(model_, boundary, plan_.microbatch_size);
}

Bytes CommandWriter::HiddenGradient(int boundary) const {
  return BoundaryGradientBytes(model_, boundary, plan_.microbatch_size);
}

ComputeTask CommandWriter::Compute(const Node& node) const {
  const Visit& visit = graph_.visit(node.visit);
  const BindingPlaces places = PlacesOf(visit);
  const int position = node.position, m = visit.microbatches[position];
  ComputeTask task;
  task.kind = TaskOf(visit.kind);
  task.layers = visit.layers;
  task.microbatch = m;
  task.samples = plan_.microbatch_size * visit.span;
  for (int use : visit.uses) {
    const auto at = std::find(visit.blocks.begin(), visit.blocks.end(), model_.uses[use].block);
    if (at == visit.blocks.end()) continue;
    if (visit.kind == VisitKind::kBackward && !model_.uses[use].needed_in_backward) continue;
    task.weights.push_back({use, places.Weight(static_cast<int>(at - visit.blocks.begin()))});
  }
  if (visit.kind != VisitKind::kForward) {
    for (int i = 0; i < static_cast<int>(visit.uses.size()); ++i) {
      task.gradients.push_back({visit.uses[i], places.Gradient(i)});
    }
    task.first_microbatch = m % plan_.replica_microbatches() == 0;
    task.last_microbatch = (m + 1) % plan_.replica_microbatches() == 0;
    task.total_labels = plan_.global_batch() * model_.labels_per_sample;
  }
  if (visit.has_input) task.input = places.Input(position);
  if (visit.activations >= 0) task.kept = kept_.Activations(visit.activations, m);
  for (size_t i = 0; i < visit.inputs.size(); ++i) {
    task.inputs.push_back({visit.inputs[i], places.In(position, visit.inputs_at[i])});
  }
  if (visit.has_loss) task.loss = places.Loss(m % plan_.share_microbatches());
  if (visit.has_output_gradient) {
    task.output_gradient = places.In(position, visit.output_gradient_at);
  }
  for (int i = 0; i < static_cast<int>(visit.outputs.size()); ++i) {
    task.outputs.push_back({visit.outputs[i], places.Output(position, i)});
  }
  if (visit.has_input_gradient) task.input_gradient = places.Out(position, Bytes(0));
  return task;
}

Transfer CommandWriter::In(const Node& node, Bytes within_slot, Bytes arena, Bytes size,
                           TrafficClass traffic, const ObjectKey& from) const {
  const Visit& visit = graph_.visit(node.visit);
  Transfer copy;
  copy.source = {-1, arena};
  copy.destination = {visit.device, PlacesOf(visit).In(node.position, within_slot)};
  copy.size = size;
  copy.traffic = traffic;
  copy.expect = Expect{Record(from), static_cast<uint64_t>(node.step) + 1};
  return copy;
}

Transfer CommandWriter::Out(const Visit& visit, Bytes device_offset, Bytes arena, Bytes size,
                            TrafficClass traffic, const ObjectKey& key, Placing& placing) {
  Transfer copy;
  copy.source = {visit.device, device_offset};
  copy.destination = {-1, arena};
  copy.size = size;
  copy.traffic = traffic;
  const int record = Record(key);
  copy.commit = Commit{record, key, static_cast<uint64_t>(visit.step) + 1};
  if (key.kind == ObjectKind::kStash || key.kind == ObjectKind::kLoss) {
    copy.retire = {record};  // these have slots of their own
  } else {
    copy.retire =
        records_.Place(record, arena, arena + size, placing.lane, placing.value, placing.after);
  }
  return copy;
}

// ---- Copies to a device ----

Transfer CommandWriter::LoadWeights(const Node& node) const {
  const Visit& visit = graph_.visit(node.visit);
  const ObjectKey key{ObjectKind::kParameter, node.index, 0};
  Transfer copy;
  copy.source = {-1, parameters_[node.index]};
  copy.destination = {visit.device, PlacesOf(visit).Weight(node.position)};
  copy.size = model_.blocks[node.index].weight_bytes;
  copy.expect = Expect{Record(key), static_cast<uint64_t>(node.step)};
  return copy;
}

Transfer CommandWriter::BatchIn(const Node& node) const {
  const Visit& visit = graph_.visit(node.visit);
  const int m = FirstMicrobatch(visit, node.position), parity = ParityOf(node);
  const int input = visit.inputs[node.index];
  return In(node, visit.inputs_at[node.index], layout_.Input(parity, input, m),
            layout_.input_bytes(input) * visit.span, TrafficClass::kTokens,
            {ObjectKind::kBatch, parity, 0});
}

// A task's input: that of a backward is its stash.
Transfer CommandWriter::InputIn(const Node& node) const {
  const Visit& visit = graph_.visit(node.visit);
  const bool stash = node.kind == NodeKind::kStashIn;
  const int m = FirstMicrobatch(visit, node.position);
  const int boundary =
      stash ? StashBoundary(plan_.backward_groups[visit.group]) : visit.layers.first;
  return In(node, visit.input_at, layout_.Stash(boundary, m), Hidden(boundary) * visit.span,
            stash ? TrafficClass::kStash : TrafficClass::kBoundary,
            {ObjectKind::kStash, boundary, m / plan_.forward_span});
}

Transfer CommandWriter::GradientIn(const Node& node) const {
  const Visit& visit = graph_.visit(node.visit);
  const int m = FirstMicrobatch(visit, node.position), boundary = visit.layers.last + 1;
  return In(node, visit.output_gradient_at,
            layout_.BoundaryGradient(BoundaryBank(plan_, visit.group + 1), m),
            HiddenGradient(boundary), TrafficClass::kBoundary,
            {ObjectKind::kBoundaryGradient, boundary, m});
}

// ---- Copies between devices ----

Transfer CommandWriter::Send(const Node& node) const {
  const Visit& visit = graph_.visit(node.visit);
  const Visit& consumer = graph_.visit(visit.consumer);
  const bool gradient = visit.kind != VisitKind::kForward;
  const int output = static_cast<int>(visit.outputs.size()) - 1;
  const Bytes hidden =
      gradient ? HiddenGradient(visit.layers.first) : Hidden(visit.outputs[output]);
  const int slice = FirstMicrobatch(consumer, node.index) % visit.span;
  const BindingPlaces from = PlacesOf(visit), to = PlacesOf(consumer);
  Transfer copy;
  copy.source = {visit.device, gradient ? from.Out(node.position, Bytes(0))
                                        : from.Output(node.position, output) + hidden * slice};
  copy.destination = {consumer.device, to.In(node.index, gradient ? consumer.output_gradient_at
                                                                  : consumer.input_at)};
  copy.size = hidden * consumer.span;
  copy.traffic = TrafficClass::kBoundary;
  return copy;
}

Transfer CommandWriter::Keep(const Node& node) const {
  const Visit& visit = graph_.visit(node.visit);
  Transfer copy;
  copy.source = {visit.device,
                 PlacesOf(visit).Output(node.position, OutputNumber(visit, node.index))};
  copy.destination = {kept_.StashDevice(node.index, visit.share),
                      kept_.Stash(node.index, FirstMicrobatch(visit, node.position))};
  copy.size = Hidden(node.index) * visit.span;
  copy.traffic = TrafficClass::kBoundary;
  return copy;
}

// ---- Copies of what a task has made, into its object ----

Transfer CommandWriter::StashOut(const Node& node, Placing& placing) {
  const Visit& visit = graph_.visit(node.visit);
  const int m = visit.microbatches[node.position];
  return Out(visit, PlacesOf(visit).Output(node.position, OutputNumber(visit, node.index)),
             layout_.Stash(node.index, m * visit.span), Hidden(node.index) * visit.span,
             layout_.IsStashed(node.index) ? TrafficClass::kStash : TrafficClass::kBoundary,
             {ObjectKind::kStash, node.index, m}, placing);
}

Transfer CommandWriter::BoundaryOut(const Node& node, Placing& placing) {
  const Visit& visit = graph_.visit(node.visit);
  const int m = visit.microbatches[node.position];
  return Out(
      visit, PlacesOf(visit).Out(node.position, Bytes(0)),
      layout_.BoundaryGradient(BoundaryBank(plan_, visit.group), m), HiddenGradient(node.index),
      plan_.update == UpdateMode::kEager ? TrafficClass::kBoundaryCommit : TrafficClass::kBoundary,
      {ObjectKind::kBoundaryGradient, node.index, m}, placing);
}

Transfer CommandWriter::LossOut(const Node& node, Placing& placing) {
  const Visit& visit = graph_.visit(node.visit);
  const int first = node.replica * plan_.replica_microbatches() % plan_.share_microbatches();
  return Out(visit, PlacesOf(visit).Loss(first), layout_.Loss(node.replica), layout_.loss_bytes(),
             TrafficClass::kLoss, {ObjectKind::kLoss, 0, node.replica}, placing);
}

Transfer CommandWriter::GradientOut(const Node& node, Bytes slot, Placing& placing) {
  const Visit& visit = graph_.visit(node.visit);
  return Out(visit, PlacesOf(visit).Gradient(node.position), slot,
             model_.blocks[model_.uses[node.index].block].gradient_bytes, TrafficClass::kGradients,
             {ObjectKind::kGradient, node.index, node.replica}, placing);
}

// In the order in which they are summed: last use first, of each its replicas ascending.
std::vector<int> CommandWriter::GradientRecords(int block) const {
  std::vector<int> records;
  const std::vector<int>& uses = model_.blocks[block].uses;
  for (auto use = uses.rbegin(); use != uses.rend(); ++use) {
    for (int replica = 0; replica < plan_.replicas; ++replica) {
      records.push_back(Record({ObjectKind::kGradient, *use, replica}));
    }
  }
  return records;
}

}  // namespace harmony
