#include "coordinator/core/command_writer.h"

#include <algorithm>
#include <utility>

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
  if (node.kind == NodeKind::kCompute) {
    command.body = Compute(node);
  } else if (node.visit < 0) {
    command.body = Host(node);
  } else {
    Placing placing{command.header.lane, command.header.signal_value, after};
    Transfer copy = Copy(node, gradient_slot, placing);
    const bool peer = node.kind == NodeKind::kEgress || node.kind == NodeKind::kKeep;
    if (recovery && !peer) copy.traffic = TrafficClass::kRecovery;
    command.body = std::move(copy);
  }
}

Bytes CommandWriter::InSlot(const Visit& visit, int position, Bytes within) const {
  return memory_[visit.device].offset(visit.in) + visit.in_stride * (position % visit.slots) +
         within;
}

Bytes CommandWriter::OutSlot(const Visit& visit, int position, Bytes within) const {
  return memory_[visit.device].offset(visit.out) + visit.out_stride * (position % visit.slots) +
         within;
}

Bytes CommandWriter::Hidden(int boundary) const {
  return BoundaryBytes(model_, boundary, plan_.microbatch_size, plan_.sequence_length);
}

Bytes CommandWriter::OutputPlace(const Visit& visit, int position, int output) const {
  if (!visit.output_kept[output]) return OutSlot(visit, position, visit.output_at[output]);
  return kept_.Stash(visit.outputs[output], FirstMicrobatch(visit, position));
}

int CommandWriter::OutputNumber(const Visit& visit, int boundary) const {
  const auto at = std::find(visit.outputs.begin(), visit.outputs.end(), boundary);
  return static_cast<int>(at - visit.outputs.begin());
}

Bytes CommandWriter::WeightPlace(const Visit& visit, int i) const {
  if (i >= visit.own_blocks) return kept_.Weights(visit.keeper, visit.share, visit.blocks[i]);
  return memory_[visit.device].offset(visit.first_weight + i);
}

int CommandWriter::Bank(int backward_group) const {
  const int groups = static_cast<int>(plan_.backward_groups.size());
  return (groups - 1 - backward_group) % std::min(plan_.boundary_banks, groups - 1);
}

int CommandWriter::FirstMicrobatch(const Visit& visit, int position) {
  return visit.microbatches[position] * visit.span;
}

ComputeTask CommandWriter::Compute(const Node& node) const {
  const Visit& visit = graph_.visit(node.visit);
  const DeviceMemory& memory = memory_[visit.device];
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
    task.weights.push_back({use, WeightPlace(visit, static_cast<int>(at - visit.blocks.begin()))});
  }
  if (visit.kind != VisitKind::kForward) {
    for (size_t i = 0; i < visit.uses.size(); ++i) {
      task.gradients.push_back(
          {visit.uses[i], memory.offset(visit.first_gradient + static_cast<int64_t>(i))});
    }
    task.first_microbatch = m % plan_.replica_microbatches() == 0;
    task.last_microbatch = (m + 1) % plan_.replica_microbatches() == 0;
    task.total_labels = plan_.global_batch() * plan_.sequence_length;
  }
  if (visit.has_input) {
    task.input = visit.kept_input >= 0 ? kept_.Stash(visit.kept_input, m * visit.span)
                                       : InSlot(visit, position, visit.input_at);
  }
  if (visit.activations >= 0) task.kept = kept_.Activations(visit.activations, m);
  if (visit.has_tokens) task.tokens = InSlot(visit, position, visit.tokens_at);
  if (visit.has_labels) {
    task.labels = InSlot(visit, position, visit.labels_at);
    task.loss = memory.offset(visit.loss) + Bytes(sizeof(LossSlot)) * InShare(m);
  }
  if (visit.has_output_gradient) {
    task.output_gradient = InSlot(visit, position, visit.output_gradient_at);
  }
  for (size_t i = 0; i < visit.outputs.size(); ++i) {
    task.outputs.push_back({visit.outputs[i], OutputPlace(visit, position, static_cast<int>(i))});
  }
  if (visit.has_input_gradient) task.input_gradient = OutSlot(visit, position, Bytes(0));
  return task;
}

Transfer CommandWriter::In(const Node& node, Bytes within_slot, Bytes arena, Bytes size,
                           TrafficClass traffic) const {
  const Visit& visit = graph_.visit(node.visit);
  Transfer copy;
  copy.source = {-1, arena};
  copy.destination = {visit.device, InSlot(visit, node.position, within_slot)};
  copy.size = size;
  copy.traffic = traffic;
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

Transfer CommandWriter::Copy(const Node& node, Bytes gradient_slot, Placing& placing) {
  switch (node.kind) {
    case NodeKind::kLoadWeights:
      return LoadWeights(node);
    case NodeKind::kEgress:
      return ToConsumer(node);
    case NodeKind::kKeep:
      return ToKeeper(node);
    case NodeKind::kStashOut:
    case NodeKind::kBoundaryOut:
    case NodeKind::kLossOut:
    case NodeKind::kGradientOut:
      return ToArena(node, gradient_slot, placing);
    default:
      return FromArena(node);
  }
}

Transfer CommandWriter::LoadWeights(const Node& node) const {
  const Visit& visit = graph_.visit(node.visit);
  const ObjectKey key{ObjectKind::kParameter, node.index, 0};
  Transfer copy;
  copy.source = {-1, parameters_[node.index]};
  copy.destination = {visit.device, WeightPlace(visit, node.position)};
  copy.size = model_.blocks[node.index].size();
  copy.expect = Expect{Record(key), static_cast<uint64_t>(node.step)};
  return copy;
}

Transfer CommandWriter::ToConsumer(const Node& node) const {
  const Visit& visit = graph_.visit(node.visit);
  const Visit& consumer = graph_.visit(visit.consumer);
  const bool gradient = visit.kind != VisitKind::kForward;
  const int output = static_cast<int>(visit.outputs.size()) - 1;
  const Bytes hidden = Hidden(gradient ? visit.layers.first : visit.outputs[output]);
  Transfer copy;
  const int slice = FirstMicrobatch(consumer, node.index) % visit.span;
  copy.source = {visit.device, gradient
                                   ? OutSlot(visit, node.position, Bytes(0))
                                   : OutputPlace(visit, node.position, output) + hidden * slice};
  copy.destination = {
      consumer.device,
      InSlot(consumer, node.index, gradient ? consumer.output_gradient_at : consumer.input_at)};
  copy.size = hidden * consumer.span;
  copy.traffic = TrafficClass::kBoundary;
  return copy;
}

Transfer CommandWriter::ToKeeper(const Node& node) const {
  const Visit& visit = graph_.visit(node.visit);
  Transfer copy;
  copy.source = {visit.device, OutputPlace(visit, node.position, OutputNumber(visit, node.index))};
  copy.destination = {kept_.StashDevice(node.index, visit.share),
                      kept_.Stash(node.index, FirstMicrobatch(visit, node.position))};
  copy.size = Hidden(node.index) * visit.span;
  copy.traffic = TrafficClass::kBoundary;
  return copy;
}

// Tokens, labels, stashes, boundary tensors and boundary gradients, into a streaming slot.
Transfer CommandWriter::FromArena(const Node& node) const {
  const Visit& visit = graph_.visit(node.visit);
  const int m = FirstMicrobatch(visit, node.position);
  const int parity = static_cast<int>(node.step & 1);
  Transfer copy;
  ObjectKey from;
  if (node.kind == NodeKind::kTokensIn || node.kind == NodeKind::kLabelsIn) {
    const bool tokens = node.kind == NodeKind::kTokensIn;
    from = {ObjectKind::kBatch, parity, 0};
    copy = In(node, tokens ? visit.tokens_at : visit.labels_at,
              tokens ? layout_.Tokens(parity, m) : layout_.Labels(parity, m),
              layout_.token_bytes() * visit.span, TrafficClass::kTokens);
  } else if (node.kind == NodeKind::kGradientIn) {
    from = {ObjectKind::kBoundaryGradient, visit.layers.last + 1, m};
    copy = In(node, visit.output_gradient_at, layout_.BoundaryGradient(Bank(visit.group + 1), m),
              Hidden(from.index), TrafficClass::kBoundary);
  } else {
    const bool stash = node.kind == NodeKind::kStashIn;
    const int boundary =
        stash ? StashBoundary(plan_.backward_groups[visit.group]) : visit.layers.first;
    from = {ObjectKind::kStash, boundary, m / plan_.forward_span};
    copy = In(node, visit.input_at, layout_.Stash(boundary, m), Hidden(boundary) * visit.span,
              stash ? TrafficClass::kStash : TrafficClass::kBoundary);
  }
  copy.expect = Expect{Record(from), static_cast<uint64_t>(node.step) + 1};
  return copy;
}

// What a task has made, into its object.
Transfer CommandWriter::ToArena(const Node& node, Bytes gradient_slot, Placing& placing) {
  const Visit& visit = graph_.visit(node.visit);
  const DeviceMemory& memory = memory_[visit.device];
  switch (node.kind) {
    case NodeKind::kStashOut: {
      const int m = visit.microbatches[node.position];
      return Out(visit, OutputPlace(visit, node.position, OutputNumber(visit, node.index)),
                 layout_.Stash(node.index, m * visit.span), Hidden(node.index) * visit.span,
                 layout_.IsStashed(node.index) ? TrafficClass::kStash : TrafficClass::kBoundary,
                 {ObjectKind::kStash, node.index, m}, placing);
    }
    case NodeKind::kBoundaryOut: {
      const int m = visit.microbatches[node.position];
      return Out(visit, OutSlot(visit, node.position, Bytes(0)),
                 layout_.BoundaryGradient(Bank(visit.group), m), Hidden(node.index),
                 plan_.update == UpdateMode::kEager ? TrafficClass::kBoundaryCommit
                                                    : TrafficClass::kBoundary,
                 {ObjectKind::kBoundaryGradient, node.index, m}, placing);
    }
    case NodeKind::kLossOut:
      return Out(visit,
                 memory.offset(visit.loss) +
                     Bytes(sizeof(LossSlot)) * InShare(node.replica * plan_.replica_microbatches()),
                 layout_.Loss(node.replica), layout_.loss_bytes(), TrafficClass::kLoss,
                 {ObjectKind::kLoss, 0, node.replica}, placing);
    default:  // kGradientOut
      return Out(visit, memory.offset(visit.first_gradient + node.position), gradient_slot,
                 model_.blocks[model_.uses[node.index].block].size(), TrafficClass::kGradients,
                 {ObjectKind::kGradient, node.index, node.replica}, placing);
  }
}

HostTask CommandWriter::Host(const Node& node) const {
  const int parity = static_cast<int>(node.step & 1);
  HostTask task;
  switch (node.kind) {
    case NodeKind::kInitialize:
      task.kind = HostTaskKind::kInitialize;
      break;
    case NodeKind::kLoadBatch:
      task.kind = HostTaskKind::kLoadBatch;
      task.offset = layout_.Batch(parity);
      break;
    case NodeKind::kStepScalars:
      task.kind = HostTaskKind::kStepScalars;
      task.offset = layout_.Scalars(parity);
      break;
    case NodeKind::kClip:
      task.kind = HostTaskKind::kClip;
      task.offset = layout_.Scalars(parity);
      break;
    case NodeKind::kCheckpoint:
      task.kind = HostTaskKind::kCheckpoint;
      break;
    default: {  // kNorm, kUpdate
      const bool norm = node.kind == NodeKind::kNorm;
      task.kind = norm ? HostTaskKind::kNorm : HostTaskKind::kUpdate;
      task.block = node.index;
      task.offset = norm ? layout_.Norm(node.index) : layout_.Scalars(parity);
      const std::vector<int>& uses = model_.blocks[node.index].uses;
      for (auto use = uses.rbegin(); use != uses.rend(); ++use) {
        for (int replica = 0; replica < plan_.replicas; ++replica) {
          task.gradient_records.push_back(Record({ObjectKind::kGradient, *use, replica}));
        }
      }
    }
  }
  return task;
}

}  // namespace harmony
