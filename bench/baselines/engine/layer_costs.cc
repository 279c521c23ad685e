#include "bench/baselines/engine/layer_costs.h"

#include <algorithm>

#include "common/model/model_sizes.h"
#include "coordinator/planner/fit/plan_builder.h"

namespace harmony::baselines {
namespace {

// A task that was not measured at this size is given a time like this (imported profiles), and no
// step that anybody compares takes so long.
constexpr Nanos kUnknown = Seconds(100'000);

Bytes Beyond(Bytes whole, Bytes part) { return std::max(whole - part, Bytes()); }

// Never less than the place that our layers keep it in.
Bytes SavedBytes(const model::LayerCost& cost, int64_t samples) {
  const Bytes saved = model::TimesSaturated(cost.saved_per_sample, samples);
  const Bytes place = model::KeptTensorBytes(cost, samples);
  return place < model::kMostBytes ? std::max(saved, place) : saved;
}

}  // namespace

LayerCosts::LayerCosts(const model::ModelSpec& model, const job::JobSpec& job,
                       const plan::MachineSpec& machine, const dispatch::CostFactory& costs,
                       int64_t microbatch)
    : model_(model),
      job_(job),
      machine_(machine),
      microbatch_(microbatch),
      shape_(planner::PlanBuilder(model, job, machine, microbatch).Blank()),
      lanes_(static_cast<int>(machine.devices.size())),
      tasks_(model, shape_, costs(shape_)) {
  MeasureSizes();
  for (int device = 0; known_ && device < num_devices(); ++device) {
    recomputing_.push_back(TimesOf(device, /*kept=*/false));
    keeping_.push_back(TimesOf(device, /*kept=*/true));
    for (const Nanos time : recomputing_.back().backward) known_ = known_ && time < kUnknown;
  }
}

void LayerCosts::MeasureSizes() {
  for (int layer = 0; layer < num_layers(); ++layer) {
    const model::LayerRange alone{layer, layer};
    const bool last = layer + 1 == num_layers();
    boundary_.push_back(model::BoundaryBytes(model_, layer, microbatch_));
    saved_.push_back(last ? Bytes() : SavedBytes(model_.cost_of(layer), microbatch_));
    Bytes inputs;
    for (int input : model::InputsOf(model_, alone)) {
      inputs += model::InputBytes(model_, input, microbatch_);
    }
    inputs_.push_back(inputs);
    forward_peak_.push_back(
        last ? Bytes()
             : model::WorkspaceBound(model_, model::WorkspaceOf::kForward, alone, microbatch_));
    backward_peak_.push_back(
        model::WorkspaceBound(model_, model::WorkspaceOf::kBackward, alone, microbatch_));
    // Not all layers are known to leave what they save in a place of its own: of others it is
    // taken off the whole.
    const auto apart = [&](model::WorkspaceOf task, Bytes whole) {
      const bool known = model_.cost_of(layer).recompute == model::Recompute::kUnlessKept;
      const Bytes own = model::WorkspaceBound(model_, task, alone, microbatch_);
      return known && own < model::kMostBytes ? own : Beyond(whole, saved_.back());
    };
    keeping_forward_.push_back(apart(model::WorkspaceOf::kKeepingForward, forward_peak_.back()));
    kept_backward_.push_back(apart(model::WorkspaceOf::kKeptBackward, backward_peak_.back()));
    for (Bytes size :
         {forward_peak_.back(), backward_peak_.back(), saved_.back(), boundary_.back()}) {
      known_ = known_ && size < model::kMostBytes;
    }
  }
}

LayerCosts::Times LayerCosts::TimesOf(int device, bool kept) {
  const auto task = [&](command::TaskKind kind, model::LayerRange layers, bool keeps) {
    return tasks_.Compute(kind, layers, device, /*first=*/false, /*last=*/false,
                          /*task_microbatches=*/1, keeps);
  };
  const int head = num_layers() - 1;
  Times times{std::vector<Nanos>(static_cast<size_t>(num_layers())),
              std::vector<Nanos>(static_cast<size_t>(num_layers()))};
  Nanos before;
  for (int layer = 0; layer < head; ++layer) {
    const Nanos whole = task(command::TaskKind::kForward, {0, layer}, kept);
    times.forward[static_cast<size_t>(layer)] = std::max(whole - before, Nanos());
    before = whole;
  }
  before = Nanos();
  for (int layer = head - 1; layer >= 0; --layer) {
    const Nanos whole = task(command::TaskKind::kBackward, {layer, head - 1}, kept);
    times.backward[static_cast<size_t>(layer)] = std::max(whole - before, Nanos());
    before = whole;
  }
  times.backward[static_cast<size_t>(head)] =
      task(command::TaskKind::kForwardBackward, {head, head}, /*keeps=*/false);
  return times;
}

Nanos LayerCosts::Forward(int layer, int device, bool recompute) const {
  const Times& times = (recompute ? recomputing_ : keeping_)[static_cast<size_t>(device)];
  return times.forward[static_cast<size_t>(layer)];
}

Nanos LayerCosts::Backward(int layer, int device, bool recompute) const {
  const Times& times = (recompute ? recomputing_ : keeping_)[static_cast<size_t>(device)];
  return times.backward[static_cast<size_t>(layer)];
}

Nanos LayerCosts::Copy(command::LaneKind kind, int device, Bytes size) const {
  if (size.count() == 0) return Nanos();
  command::Command command;
  command.header.lane = static_cast<uint32_t>(lanes_.IndexOf({kind, device}));
  command::Transfer copy;
  const bool out = kind == command::LaneKind::kD2H || kind == command::LaneKind::kP2P;
  copy.source.device = out ? device : -1;
  copy.destination.device = kind == command::LaneKind::kD2H ? -1 : device;
  copy.size = size;
  command.body = std::move(copy);
  return tasks_.model().Duration(command);
}

plan::LaneResources LayerCosts::resources() const {
  return plan::ResourcesOfLanes(shape_, tasks_.model().Cores());
}

Bytes LayerCosts::ForwardScratch(int layer, bool recompute) const {
  return (recompute ? forward_peak_ : keeping_forward_)[static_cast<size_t>(layer)];
}

Bytes LayerCosts::BackwardScratch(int layer, bool recompute) const {
  return (recompute ? backward_peak_ : kept_backward_)[static_cast<size_t>(layer)];
}

}  // namespace harmony::baselines
