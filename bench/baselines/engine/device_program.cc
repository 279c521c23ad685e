#include "bench/baselines/engine/device_program.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace harmony::baselines {
namespace {

using command::LaneKind;

constexpr Tensor kNone = kNoTensor;

void Append(Tensor tensor, std::vector<Tensor>* to) {
  if (tensor != kNone) to->push_back(tensor);
}

}  // namespace

const char* ToString(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNothing:
      return "nothing";
    case Recompute::kLayers:
      return "layers";
    case Recompute::kStage:
      return "stage";
  }
  return "";
}

DeviceProgram::DeviceProgram(const LayerCosts& costs, int device, model::LayerRange layers,
                             const DevicePolicy& policy, Timeline* timeline, Recording* recording)
    : costs_(costs),
      layers_(layers),
      policy_(policy),
      timeline_(*timeline),
      recording_(recording),
      memory_(costs, device, costs.machine().devices[static_cast<size_t>(device)].usable(),
              policy.paging, timeline, recording),
      blocks_of_(costs.model().blocks.size()) {
  const bool is_virtual = policy.weights == WeightPolicy::kVirtual;
  for (size_t b = 0; b < blocks_of_.size(); ++b) {
    const model::ParamBlock& block = costs.model().blocks[b];
    Block& own = blocks_of_[b];
    for (int reference : block.references) {
      const int layer = costs.model().references[static_cast<size_t>(reference)].layer;
      if (layers.contains(layer) && own.first_layer < 0) own.first_layer = layer;
    }
    if (own.first_layer < 0) continue;
    blocks_.push_back(static_cast<int>(b));
    if (policy.weights == WeightPolicy::kSharded) {
      own.share = memory_.Add({.size = PartOf(block.weight_bytes, policy_.shards),
                               .traffic = Traffic::kWeights,
                               .on_host = true,
                               .evictable = false});
    }
    for (int version = 0; version < policy.weight_versions; ++version) {
      own.weights.push_back(memory_.Add({.size = block.weight_bytes,
                                         .traffic = Traffic::kWeights,
                                         .on_host = true,
                                         .evictable = policy.weights != WeightPolicy::kResident &&
                                                      policy.weights != WeightPolicy::kGathered,
                                         .shards = is_virtual ? 1 : policy.shards,
                                         .own_share = own.share}));
    }
    if (!is_virtual) continue;
    own.gradient = memory_.Add({.size = block.accumulator_bytes, .traffic = Traffic::kGradients});
    const Bytes state = block.moment_bytes * job::MomentsOf(costs.job()) + block.master_bytes();
    own.state = memory_.Add({.size = state, .traffic = Traffic::kOptimizerState, .on_host = true});
  }
}

std::vector<DeviceProgram::Uses> DeviceProgram::UsesOf(int layer) const {
  std::vector<Uses> uses;
  for (int reference : costs_.model().layers[static_cast<size_t>(layer)].references) {
    const model::ParameterReference& of = costs_.model().references[static_cast<size_t>(reference)];
    uses.push_back({of.block, of.needed_in_backward});
  }
  return uses;
}

bool DeviceProgram::Recomputes(int layer) const {
  return policy_.recompute == Recompute::kLayers &&
         (layer - layers_.first) * 4 < layers_.count() * policy_.recomputed_quarters;
}

DeviceProgram::Microbatch& DeviceProgram::Of(int id) {
  Microbatch& microbatch = microbatches_[id];
  if (microbatch.input.empty()) {
    const std::vector<Tensor> none(static_cast<size_t>(costs_.num_layers()) + 1, kNone);
    microbatch = {none, none, none, none, false};
  }
  return microbatch;
}

Tensor DeviceProgram::Activation(Bytes size, bool evictable) {
  if (size.count() == 0) return kNone;
  return memory_.Add({.size = size, .traffic = Traffic::kActivations, .evictable = evictable});
}

void DeviceProgram::ReadBatch(Microbatch& microbatch, int layer, DeviceTask* task) {
  Tensor& batch = microbatch.batch[static_cast<size_t>(layer)];
  const Bytes size = costs_.Inputs(layer);
  if (batch == kNone && size.count() > 0) {
    batch = memory_.Add({.size = size, .traffic = Traffic::kInputs, .on_host = true});
  }
  task->work.batch = batch;
  Append(batch, &task->reads);
}

void DeviceProgram::ReadWeights(int layer, int version, bool all, DeviceTask* task) {
  for (const Uses& use : UsesOf(layer)) {
    const bool reads = all || use.weights_in_backward;
    const Tensor weights =
        blocks_of_[static_cast<size_t>(use.block)].weights[static_cast<size_t>(version)];
    if (reads) {
      Append(blocks_of_[static_cast<size_t>(use.block)].share, &task->reads);
      task->reads.push_back(weights);
    }
    task->work.weights.push_back(reads ? weights : kNone);
  }
}

Operation DeviceProgram::Forward(int id, int layer, int version, Operation arrival, bool keeps) {
  const auto at = static_cast<size_t>(layer);
  Microbatch& microbatch = Of(id);
  const bool saves = policy_.recompute == Recompute::kStage ? keeps : !Recomputes(layer);
  microbatch.kept = saves;
  DeviceTask task;
  task.what = absl::StrCat("forward of layer ", layer);
  task.duration = costs_.Forward(layer, device(), !saves);
  task.scratch = costs_.ForwardScratch(layer, !saves);
  task.after = {arrival};
  task.work = {.kind = Work::Kind::kForward, .layer = layer, .microbatch = id, .arrival = arrival};
  ReadWeights(layer, version, /*all=*/true, &task);
  ReadBatch(microbatch, layer, &task);
  if (layer == layers_.first && microbatch.input[at] == kNone) {
    microbatch.input[at] = Activation(costs_.Boundary(layer), policy_.evictable_activations);
    Append(microbatch.input[at], &task.creates);
  } else {
    Append(microbatch.input[at], &task.reads);
  }
  task.work.input = microbatch.input[at];
  AddOutputs(microbatch, layer, saves, &task);
  const Operation operation = memory_.Run(task);
  DropWeights(layer, /*backward=*/false, /*last=*/false, operation);
  return operation;
}

void DeviceProgram::AddOutputs(Microbatch& microbatch, int layer, bool keeps, DeviceTask* task) {
  const auto at = static_cast<size_t>(layer);
  // Of a stage that will be recomputed only the first input stays.
  const bool passes = policy_.recompute == Recompute::kStage && !keeps;
  if (passes && layer > layers_.first) Append(microbatch.input[at], &task->frees);
  // The last layer's forward is part of its backward: its input is made for that alone.
  const bool last_read = layer + 2 == costs_.num_layers();
  if (layer < layers_.last && !(passes && last_read)) {
    microbatch.input[at + 1] =
        Activation(costs_.Boundary(layer + 1), policy_.evictable_activations);
    task->work.output = microbatch.input[at + 1];
    Append(microbatch.input[at + 1], &task->creates);
  } else {
    task->scratch += costs_.Boundary(layer + 1);  // it leaves as soon as it is there
  }
  if (keeps) {
    microbatch.saved[at] = Activation(costs_.Saved(layer), policy_.evictable_saved);
    task->work.saved = microbatch.saved[at];
    Append(microbatch.saved[at], &task->creates);
  }
}

void DeviceProgram::RecomputeStage(int id, int version) {
  if (policy_.recompute != Recompute::kStage || Of(id).kept) return;
  const int last = std::min(layers_.last, costs_.num_layers() - 2);
  for (int layer = layers_.first; layer <= last; ++layer) {
    Forward(id, layer, version, kNoOperation, /*keeps=*/true);
  }
}

Operation DeviceProgram::Backward(int id, int layer, bool first, bool last, int version,
                                  Operation arrival) {
  const auto at = static_cast<size_t>(layer);
  const bool head = layer + 1 == costs_.num_layers();
  Microbatch& microbatch = Of(id);
  DeviceTask task;
  task.what = absl::StrCat("backward of layer ", layer);
  const bool recomputes = Recomputes(layer);
  task.duration = costs_.Backward(layer, device(), recomputes);
  task.scratch = costs_.BackwardScratch(layer, recomputes);
  task.after = {arrival};
  task.work = {.kind = Work::Kind::kBackward, .layer = layer, .microbatch = id, .arrival = arrival};
  ReadWeights(layer, version, /*all=*/head, &task);
  ReadBatch(microbatch, layer, &task);
  Tensor& input = microbatch.input[at];
  if (head && layer == layers_.first) {  // a device that has the last layer alone
    input = Activation(costs_.Boundary(layer), policy_.evictable_activations);
    Append(input, &task.creates);
  } else {
    Append(input, &task.reads);
  }
  Append(microbatch.saved[at], &task.reads);
  Tensor& gradient = microbatch.input_gradient[at + 1];
  if (layer == layers_.last && !head) {
    gradient = Activation(costs_.Boundary(layer + 1), policy_.evictable_activations);
    Append(gradient, &task.creates);
  } else {
    Append(gradient, &task.reads);
  }
  if (layer > layers_.first) {
    microbatch.input_gradient[at] =
        Activation(costs_.Boundary(layer), policy_.evictable_activations);
    Append(microbatch.input_gradient[at], &task.creates);
  } else {
    task.scratch += costs_.Boundary(layer);
  }
  for (Tensor done : {input, microbatch.saved[at], gradient, microbatch.batch[at]}) {
    Append(done, &task.frees);
  }
  AddGradients(layer, first, &task);
  task.work.input = input;
  task.work.saved = microbatch.saved[at];
  task.work.output_gradient = gradient;
  task.work.input_gradient = microbatch.input_gradient[at];
  const Operation operation = memory_.Run(task);
  DropWeights(layer, /*backward=*/true, last, operation);
  SendGradients(layer, last, operation);
  if (layer == layers_.first) microbatches_.erase(id);
  return operation;
}

void DeviceProgram::AddGradients(int layer, bool first, DeviceTask* task) {
  for (const Uses& use : UsesOf(layer)) {
    Block& own = blocks_of_[static_cast<size_t>(use.block)];
    const model::ParamBlock& block = costs_.model().blocks[static_cast<size_t>(use.block)];
    if (policy_.gradients != GradientPolicy::kVirtual && own.gradient == kNone) {
      own.gradient = memory_.Add(
          {.size = block.accumulator_bytes, .traffic = Traffic::kGradients, .evictable = false});
    }
    task->work.gradients.push_back(own.gradient);
    (memory_.exists(own.gradient) ? task->writes : task->creates).push_back(own.gradient);
    const bool share_apart = policy_.gradients == GradientPolicy::kLeaveOnce && policy_.shards > 1;
    if (!share_apart) continue;
    if (own.state == kNone) {
      own.state = memory_.Add({.size = PartOf(block.accumulator_bytes, policy_.shards),
                               .traffic = Traffic::kGradients,
                               .evictable = false});
    }
    if (first && !memory_.exists(own.state)) task->creates.push_back(own.state);
  }
}

void DeviceProgram::SendGradients(int layer, bool last, Operation made) {
  if (policy_.gradients == GradientPolicy::kVirtual) return;
  for (const Uses& use : UsesOf(layer)) {
    // A tied block's gradient stays until all its layers have added to it.
    if (CompletesGradient(use.block) == layer) SendGradient(use.block, last, made);
  }
}

void DeviceProgram::SendGradient(int block, bool last, Operation made) {
  Block& own = blocks_of_[static_cast<size_t>(block)];
  const Bytes whole = costs_.model().blocks[static_cast<size_t>(block)].gradient_bytes;
  const Bytes share = PartOf(whole, policy_.shards);
  if (policy_.gradients == GradientPolicy::kReduceOnce && !last) return;
  const bool once = policy_.gradients == GradientPolicy::kLeaveOnce;
  Operation reduced = made;
  if (policy_.shards > 1) {
    reduced = timeline_.AddCopy({LaneKind::kP2P, device()},
                                costs_.Copy(LaneKind::kP2P, device(), whole - share), whole - share,
                                Traffic::kGradients, {made});
  }
  if (once && !last) {
    if (policy_.shards > 1) memory_.Free(own.gradient, reduced);
    return;
  }
  own.gradient_out =
      timeline_.AddCopy({LaneKind::kD2H, device()}, costs_.Copy(LaneKind::kD2H, device(), share),
                        share, Traffic::kGradients, {reduced});
  if (once && policy_.shards > 1) {
    memory_.Free(own.gradient, reduced);
    memory_.Free(own.state, own.gradient_out);
  } else {
    memory_.Free(own.gradient, own.gradient_out);
  }
}

void DeviceProgram::DropWeights(int layer, bool backward, bool last, Operation after) {
  const bool gathered = policy_.weights == WeightPolicy::kGathered;
  if (!gathered && policy_.weights != WeightPolicy::kDropped) return;
  for (const Uses& use : UsesOf(layer)) {
    const bool needed = gathered && (!backward || CompletesGradient(use.block) != layer || !last);
    if (!needed) memory_.Drop(blocks_of_[static_cast<size_t>(use.block)].weights[0], after);
  }
}

Operation DeviceProgram::Send(int boundary, Operation made) {
  const Bytes size = costs_.Boundary(boundary);
  const Operation sent =
      timeline_.AddCopy({LaneKind::kP2P, device()}, costs_.Copy(LaneKind::kP2P, device(), size),
                        size, Traffic::kActivations, {made});
  if (recording_ != nullptr) {
    Action& action = recording_->At(sent);
    action.kind = Action::Kind::kSend;
    action.device = device();
    action.sends = made;
    action.size = size;
  }
  return sent;
}

Operation DeviceProgram::Reduce(int block, Bytes moved, const std::vector<Operation>& after) {
  DeviceTask task;
  task.what = absl::StrCat("reduction of the gradient of block ", block);
  task.lane = LaneKind::kP2P;
  task.duration = costs_.Copy(LaneKind::kP2P, device(), moved);
  task.writes = {blocks_of_[static_cast<size_t>(block)].gradient};
  task.after = after;
  task.moved = moved;
  task.work = {.kind = Work::Kind::kReduce, .block = block, .gradients = task.writes};
  return memory_.Run(task);
}

Operation DeviceProgram::Update(int block, int from, int to) {
  Block& own = blocks_of_[static_cast<size_t>(block)];
  DeviceTask task;
  task.what = absl::StrCat("update of block ", block);
  task.reads = {own.gradient};
  // What is written over is not brought in for it, where that is another version.
  const Tensor written = own.weights[static_cast<size_t>(to)];
  const bool made = from != to && !memory_.resident(written);
  if (made) memory_.Free(written, kNoOperation);
  (made ? task.creates : task.writes).push_back(written);
  task.writes.push_back(own.state);
  task.frees = {own.gradient};
  task.work = {.kind = Work::Kind::kUpdate, .block = block, .state = own.state};
  task.work.weights = {written};
  task.work.gradients = {own.gradient};
  if (from != to) {
    task.work.weights_before = own.weights[static_cast<size_t>(from)];
    task.reads.push_back(task.work.weights_before);
  }
  return memory_.Run(task);
}

void DeviceProgram::Updated(int block, Operation by) {
  const Block& own = blocks_of_[static_cast<size_t>(block)];
  const Tensor weights = own.weights[0];
  if (policy_.weights == WeightPolicy::kSharded) {
    memory_.ReplaceOnHost(weights, memory_.RefreshFromHost(own.share, by));
  } else if (policy_.weights == WeightPolicy::kResident) {
    memory_.RefreshFromHost(weights, by);
  } else {
    memory_.ReplaceOnHost(weights, by);
  }
}

}  // namespace harmony::baselines
