#include "coordinator/planner/timing/task_costs.h"

#include <algorithm>
#include <utility>

#include "common/model/model_sizes.h"

namespace harmony::planner {

TaskCosts::TaskCosts(const model::ModelSpec& model, const plan::Plan& shape,
                     std::unique_ptr<dispatch::CostModel> costs)
    : spec_(model),
      lanes_(static_cast<int>(shape.devices.size())),
      samples_(shape.microbatch_size),
      costs_(std::move(costs)) {
  const int devices = lanes_.num_devices();
  const Bytes losses = Bytes(sizeof(command::LossSlot));
  loads_.resize(devices);
  gradients_.resize(devices);
  for (int d = 0; d < devices; ++d) {
    for (const model::ParamBlock& block : model.blocks) {
      loads_[d].push_back(Copy(command::LaneKind::kH2DBulk, -1, d, block.weight_bytes,
                               command::TrafficClass::kWeights));
    }
    for (const model::ParameterReference& reference : model.references) {
      gradients_[d].push_back(Copy(command::LaneKind::kD2H, d, -1,
                                   model.blocks[reference.block].gradient_bytes,
                                   command::TrafficClass::kGradients));
    }
    loss_out_.push_back(Copy(command::LaneKind::kD2H, d, -1, losses, command::TrafficClass::kLoss));
  }
  passed_.assign(devices, std::vector<std::vector<Nanos>>(devices));
  for (int from = 0; from < devices; ++from) {
    for (int to = 0; to < devices; ++to) {
      if (to == from || shape.devices[from].root == 0 ||
          shape.devices[from].root != shape.devices[to].root) {
        continue;
      }
      for (const model::ParamBlock& block : model.blocks) {
        passed_[from][to].push_back(Copy(command::LaneKind::kP2P, from, to, block.weight_bytes,
                                         command::TrafficClass::kBoundary));
      }
    }
  }
  for (int parts = 1; parts <= shape.replicas; parts *= 2) {
    std::vector<Nanos>&updates = updates_.emplace_back(), &norms = norms_.emplace_back();
    for (size_t block = 0; block < model.blocks.size(); ++block) {
      updates.push_back(Host(command::HostTaskKind::kUpdate, static_cast<int>(block), parts));
      norms.push_back(Host(command::HostTaskKind::kNorm, static_cast<int>(block), parts));
    }
  }
  std::map<Bytes, int> known;
  for (int boundary = 0; boundary < model.num_layers(); ++boundary) {
    const Bytes size = model::BoundaryBytes(model, boundary, samples_);
    const auto [at, added] = known.emplace(size, static_cast<int>(sizes_.size()));
    if (added) sizes_.push_back(size);
    size_.push_back(at->second);
  }
  one_ = MakeStreams(1);
}

Nanos TaskCosts::ComputeAlone(int layer, int device) {
  const model::LayerRange alone{layer, layer};
  if (layer + 1 == spec_.num_layers())
    return Compute(command::TaskKind::kForwardBackward, alone, device);
  return Compute(command::TaskKind::kForward, alone, device) +
         Compute(command::TaskKind::kBackward, alone, device);
}

Nanos TaskCosts::SumTo(int reference, int from, int to) const {
  return Copy(command::LaneKind::kP2P, from, to,
              spec_.blocks[spec_.references[reference].block].accumulator_bytes,
              command::TrafficClass::kBoundary);
}

TaskCosts::Hidden TaskCosts::MakeHidden(Bytes size) const {
  Hidden hidden;
  const int devices = lanes_.num_devices();
  hidden.to.resize(devices);
  for (int d = 0; d < devices; ++d) {
    hidden.in.push_back(
        Copy(command::LaneKind::kH2DStream, -1, d, size, command::TrafficClass::kStash));
    hidden.out.push_back(Copy(command::LaneKind::kD2H, d, -1, size, command::TrafficClass::kStash));
    for (int to = 0; to < devices; ++to) {
      hidden.to[d].push_back(
          to == d ? Nanos()
                  : Copy(command::LaneKind::kP2P, d, to, size, command::TrafficClass::kBoundary));
    }
  }
  return hidden;
}

TaskCosts::Streams TaskCosts::MakeStreams(int task_microbatches) const {
  Streams streams;
  for (Bytes size : sizes_) streams.hidden.push_back(MakeHidden(size * task_microbatches));
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    const Bytes size = model::InputBytes(spec_, static_cast<int>(i), samples_ * task_microbatches);
    std::vector<Nanos>& copies = streams.inputs_in.emplace_back();
    for (int d = 0; d < lanes_.num_devices(); ++d) {
      copies.push_back(
          Copy(command::LaneKind::kH2DStream, -1, d, size, command::TrafficClass::kTokens));
    }
  }
  return streams;
}

TaskCosts::Streams& TaskCosts::OfMany(int task_microbatches) {
  const auto at = many_.find(task_microbatches);
  return at != many_.end()
             ? at->second
             : many_.emplace(task_microbatches, MakeStreams(task_microbatches)).first->second;
}

Nanos TaskCosts::Compute(command::TaskKind kind, model::LayerRange layers, int device, bool first,
                         bool last, int task_microbatches, bool kept) {
  const uint64_t edges = (first ? 1 : 0) | (last ? 2 : 0);
  const uint64_t key = static_cast<uint64_t>(kind) | edges << 2 |
                       static_cast<uint64_t>(device) << 4 |
                       static_cast<uint64_t>(layers.first) << 16 |
                       static_cast<uint64_t>(layers.last) << 40 | static_cast<uint64_t>(kept) << 63;
  const auto [entry, added] = Of(task_microbatches).compute.try_emplace(key);
  if (!added) return entry->second;
  command::Command command;
  command.header.lane =
      static_cast<uint32_t>(lanes_.IndexOf({command::LaneKind::kCompute, device}));
  command::ComputeTask task;
  task.kind = kind;
  task.layers = layers;
  task.samples = samples_ * task_microbatches;
  if (kept) task.kept = Bytes(0);
  task.first_microbatch = first;
  task.last_microbatch = task.stores_gradients = last;
  command.body = std::move(task);
  return entry->second = costs_->Duration(command);
}

Nanos TaskCosts::Copy(command::LaneKind kind, int from, int to, Bytes size,
                      command::TrafficClass traffic) const {
  command::Command command;
  command.header.lane = static_cast<uint32_t>(lanes_.IndexOf({kind, from >= 0 ? from : to}));
  command::Transfer copy;
  copy.source.device = from;
  copy.destination.device = to;
  copy.size = size;
  copy.traffic = traffic;
  command.body = std::move(copy);
  return costs_->Duration(command);
}

Nanos TaskCosts::Host(command::HostTaskKind kind, int block, int parts) const {
  command::Command command;
  command.header.lane = static_cast<uint32_t>(lanes_.IndexOf({command::LaneKind::kHostCompute, 0}));
  command::HostTask task;
  task.kind = kind;
  task.block = block;
  if (block >= 0)
    task.gradient_records.resize(spec_.blocks[block].references.size() *
                                 static_cast<size_t>(parts));
  command.body = std::move(task);
  return costs_->Duration(command);
}

}  // namespace harmony::planner
