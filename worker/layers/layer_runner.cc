#include "worker/layers/layer_runner.h"

#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/model_sizes.h"
#include "common/model/sum_tree.h"
#include "worker/layers/stored_gradient.h"

namespace harmony::worker {
namespace {

absl::Status MissingBinding(absl::string_view what) {
  return absl::InternalError(absl::StrCat("the ", what, " is not bound"));
}

// The tensors of one boundary, or their gradients, and the workspace that they lie in when no
// buffer is bound for them. Copies share the memory; the last one gives it back.
struct BoundaryTensors {
  std::vector<DeviceTensor> tensors;
  std::vector<std::shared_ptr<WorkspaceBlock>> memory;
};

// A layer's input and what its forward saved, from the forward to the backward of one task.
struct LayerState {
  BoundaryTensors input;
  std::unique_ptr<SavedActivations> saved;
};

// A tensor that was checked to be finite; its position is the check's tag.
struct Check {
  int layer = 0;
  const char* what = "output";
  const model::ParamBlock* block = nullptr;  // of a weight gradient
};

}  // namespace

struct LayerRunner::Chain {
  Chain(model::ModelSpec spec, LayerChain chain, ComputeDevice& on)
      : model(std::move(spec)), layers(std::move(chain)), device(on), gradients(model.boundaries) {
    for (std::vector<model::SampleTensor>& types : gradients) {
      std::erase_if(types,
                    [](const model::SampleTensor& type) { return !IsFloatingPoint(type.dtype); });
    }
  }

  const std::vector<model::SampleTensor>& TypesAt(int boundary) const {
    return model.boundaries[static_cast<size_t>(boundary)];
  }
  const std::vector<model::SampleTensor>& GradientTypesAt(int boundary) const {
    return gradients[static_cast<size_t>(boundary)];
  }
  const model::ParamBlock& BlockOf(int reference) const {
    const int block = model.references[static_cast<size_t>(reference)].block;
    return model.blocks[static_cast<size_t>(block)];
  }
  int LayerOf(int reference) const {
    return model.references[static_cast<size_t>(reference)].layer;
  }
  // A forward writes to what lies with the layer's gradients.
  bool HasStatistics(int layer) const {
    return absl::c_any_of(model.layers[static_cast<size_t>(layer)].references, [&](int reference) {
      return absl::c_any_of(BlockOf(reference).tensors, [](const model::TensorSpec& tensor) {
        return tensor.role == model::TensorRole::kStatistic;
      });
    });
  }
  Layer& LayerAt(int layer) const { return *layers[static_cast<size_t>(layer)]; }
  // The first layer of a group that a backward recomputes, or that keeps what it computed: one
  // whose input comes from the data set alone goes back without.
  int FirstSaving(model::LayerRange range) const {
    return range.first + (TypesAt(range.first).empty() ? 1 : 0);
  }
  // Whether a forward of these layers runs several microbatches at once. Tensors of one boundary
  // lie microbatch by microbatch, so there must be one only.
  bool TakesSeveralMicrobatches(model::LayerRange range) const {
    for (int layer = range.first; layer <= range.last; ++layer) {
      if (!LayerAt(layer).TakesSeveralMicrobatches()) return false;
      if (TypesAt(layer).size() > 1 || TypesAt(layer + 1).size() > 1) return false;
    }
    return true;
  }

  const model::ModelSpec model;
  const LayerChain layers;
  ComputeDevice& device;
  // By boundary: those of its tensors that have gradients.
  std::vector<std::vector<model::SampleTensor>> gradients;
};

// One run of a group of layers. Everything that it takes from the workspace is given back when it
// is destroyed.
class LayerRunner::Task {
 public:
  Task(const Chain& chain, const GroupBinding& binding) : chain_(chain), b_(binding) {
    call_.samples = b_.samples;
    call_.microbatch = b_.microbatch > 0 ? b_.microbatch : b_.samples;
    references_ = b_.references;
    for (ReferenceBinding& reference : references_) {
      if (!reference.gradients) continue;
      reference.gradients = GradientBuffer(reference.gradients, model::WaitingSums(b_.replica));
    }
    call_.references = references_;
    call_.first_microbatch = b_.first_microbatch;
    const std::vector<model::BatchInput>& inputs = chain_.model.inputs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const DeviceAddress address = i < b_.batch.size() ? b_.batch[i] : DeviceAddress();
      batch_.push_back(TensorAt(inputs[i].tensor, address, b_.samples));
    }
    call_.batch = batch_;
    call_.lent = &lent_;
    if (b_.kept) FindKeptPlaces();
  }

  absl::Status Forward();
  absl::Status Backward();
  absl::Status ForwardBackward();

  // Waits for the device; an earlier result that was not finite explains a later failure.
  absl::Status Finish(const absl::Status& status);

 private:
  // Number `buffer` of a gradient, whose first one is at `first`.
  DeviceAddress GradientBuffer(DeviceAddress first, int buffer) const {
    return first + b_.gradient_stride * buffer;
  }
  BoundaryTensors Bound(const std::vector<model::SampleTensor>& types, DeviceAddress address) const;
  absl::StatusOr<BoundaryTensors> NewTensors(const std::vector<model::SampleTensor>& types) const;
  absl::StatusOr<BoundaryTensors> Input(int boundary) const;
  absl::StatusOr<BoundaryTensors> InputGradient(int layer) const;
  // The memory for the outputs of a layer: kept, bound, or from the workspace.
  absl::StatusOr<BoundaryTensors> OutputsOf(int layer) const;
  // In the group's place for kept activations: layer by layer what it saves, then, but for the last
  // one, its outputs.
  void FindKeptPlaces();
  // Where a layer leaves what its backward needs; nowhere when that is not kept.
  DeviceAddress KeptPlaceOf(int layer) const;
  BoundaryTensors KeptOutputsOf(int layer) const;

  // Lends the place of the group's input gradient to all before its first layer's backward, which
  // writes it.
  void LendInputGradient();
  // Forward of a layer that this task goes back through.
  absl::Status ForwardToReturn(int layer, const BoundaryTensors& x, const BoundaryTensors& y,
                               SavedActivations* saved);

  // Before the first write to the gradients of a layer: waits for their buffers and zeroes them.
  absl::Status PrepareGradients(int layer) const;
  // Those that a forward writes to: of layers with statistics.
  absl::Status PrepareStatistics() const;
  // The layers from `last` down to the group's first; states_ are consumed.
  absl::Status BackwardLayers(int last, BoundaryTensors output_gradients);

  void CheckTensors(int layer, const BoundaryTensors& outputs);
  absl::Status FinishGradients();
  void FinishGradient(DeviceAddress buffers, const model::ParamBlock& params, int layer);
  void CheckFinite(const DeviceTensor& tensor, const Check& check);

  const Chain& chain_;
  const GroupBinding& b_;
  std::vector<DeviceTensor> batch_;
  std::vector<ReferenceBinding> references_;  // with the gradient buffers of the task's replica
  LayerCall call_;
  LentPlaces lent_;  // outlives what was saved
  BoundaryTensors input_gradient_;
  struct KeptPlace {
    DeviceAddress saved, outputs;
  };
  std::vector<KeptPlace>
      kept_places_;  // from the first layer on that saves; empty: nothing is kept
  std::vector<LayerState> states_;
  std::vector<Check> checks_;
};

BoundaryTensors LayerRunner::Task::Bound(const std::vector<model::SampleTensor>& types,
                                         DeviceAddress address) const {
  BoundaryTensors bound;
  for (const model::SampleTensor& type : types) {
    bound.tensors.push_back(TensorAt(type, address, b_.samples));
    address =
        address + model::TimesSaturated(type.per_sample(), b_.samples).AlignUp(kSlotAlignment);
  }
  return bound;
}

absl::StatusOr<BoundaryTensors> LayerRunner::Task::NewTensors(
    const std::vector<model::SampleTensor>& types) const {
  BoundaryTensors made;
  for (const model::SampleTensor& type : types) {
    HARMONY_ASSIGN_OR_RETURN(
        std::shared_ptr<WorkspaceBlock> memory,
        chain_.device.Allocate(model::TimesSaturated(type.per_sample(), b_.samples)));
    made.tensors.push_back(TensorAt(type, memory->address(), b_.samples));
    made.memory.push_back(std::move(memory));
  }
  return made;
}

absl::StatusOr<BoundaryTensors> LayerRunner::Task::Input(int boundary) const {
  if (chain_.TypesAt(boundary).empty()) return BoundaryTensors();
  if (!b_.input) return MissingBinding("group's input");
  return Bound(chain_.TypesAt(boundary), b_.input);
}

absl::StatusOr<BoundaryTensors> LayerRunner::Task::InputGradient(int layer) const {
  const std::vector<model::SampleTensor>& types = chain_.GradientTypesAt(layer);
  if (layer > b_.layers.first) return NewTensors(types);
  if (!types.empty() && !b_.input_gradient) return MissingBinding("input gradient");
  return Bound(types, b_.input_gradient);
}

void LayerRunner::Task::FindKeptPlaces() {
  DeviceAddress place = b_.kept;
  for (int layer = chain_.FirstSaving(b_.layers); layer <= b_.layers.last; ++layer) {
    const DeviceAddress outputs = place + chain_.LayerAt(layer).KeptBytes(b_.samples);
    kept_places_.push_back({place, outputs});
    const Bytes behind = model::BoundaryBytes(chain_.model, layer + 1, b_.samples);
    place = outputs + behind.AlignUp(kSlotAlignment);
  }
}

DeviceAddress LayerRunner::Task::KeptPlaceOf(int layer) const {
  if (!b_.kept) return DeviceAddress();
  return kept_places_[static_cast<size_t>(layer - chain_.FirstSaving(b_.layers))].saved;
}

BoundaryTensors LayerRunner::Task::KeptOutputsOf(int layer) const {
  const auto index = static_cast<size_t>(layer - chain_.FirstSaving(b_.layers));
  return Bound(chain_.TypesAt(layer + 1), kept_places_[index].outputs);
}

absl::StatusOr<BoundaryTensors> LayerRunner::Task::OutputsOf(int layer) const {
  const bool inner = layer >= chain_.FirstSaving(b_.layers) && layer < b_.layers.last;
  if (b_.kept && inner) return KeptOutputsOf(layer);
  for (const BoundaryOutput& output : b_.outputs) {
    if (output.boundary == layer + 1) return Bound(chain_.TypesAt(layer + 1), output.address);
  }
  return NewTensors(chain_.TypesAt(layer + 1));
}

absl::Status LayerRunner::Task::Forward() {
  HARMONY_ASSIGN_OR_RETURN(BoundaryTensors x, Input(b_.layers.first));
  for (int index = b_.layers.first; index <= b_.layers.last; ++index) {
    Layer& layer = chain_.LayerAt(index);
    HARMONY_ASSIGN_OR_RETURN(BoundaryTensors y, OutputsOf(index));
    std::unique_ptr<SavedActivations> saved;
    if (b_.kept && index >= chain_.FirstSaving(b_.layers)) {
      saved = layer.NewSaved(b_.samples, KeptPlaceOf(index));
    }
    HARMONY_RETURN_IF_ERROR(layer.Forward(call_, x.tensors, y.tensors, saved.get()));
    CheckTensors(index, y);
    x = std::move(y);
  }
  return absl::OkStatus();
}

void LayerRunner::Task::LendInputGradient() {
  if (!b_.input_gradient) return;
  input_gradient_ = Bound(chain_.GradientTypesAt(b_.layers.first), b_.input_gradient);
  for (const DeviceTensor& place : input_gradient_.tensors) lent_.Add(place, LentPlaces::kLater);
}

// Only the first layer saves there: a profile takes the workspace of a group for the sum of what
// its layers take alone and in pairs, where each layer but the first has no such place.
absl::Status LayerRunner::Task::ForwardToReturn(int layer, const BoundaryTensors& x,
                                                const BoundaryTensors& y, SavedActivations* saved) {
  if (layer == b_.layers.first) call_.input_gradients = input_gradient_.tensors;
  const absl::Status status = chain_.LayerAt(layer).Forward(call_, x.tensors, y.tensors, saved);
  call_.input_gradients = {};
  return status;
}

absl::Status LayerRunner::Task::PrepareGradients(int layer) const {
  if (!b_.first_microbatch) return absl::OkStatus();
  for (auto bound = references_.rbegin(); bound != references_.rend(); ++bound) {
    if (!bound->gradients || chain_.LayerOf(bound->reference) != layer) continue;
    if (b_.await_buffer) HARMONY_RETURN_IF_ERROR(b_.await_buffer(bound->reference));
    chain_.device.Zero(bound->gradients, chain_.BlockOf(bound->reference).accumulator_bytes);
  }
  return absl::OkStatus();
}

absl::Status LayerRunner::Task::PrepareStatistics() const {
  for (int layer = b_.layers.last; layer >= b_.layers.first; --layer) {
    if (chain_.HasStatistics(layer)) HARMONY_RETURN_IF_ERROR(PrepareGradients(layer));
  }
  return absl::OkStatus();
}

absl::Status LayerRunner::Task::Backward() {
  const int last = b_.layers.last;
  if (!b_.output_gradient) return MissingBinding("output gradient");
  HARMONY_RETURN_IF_ERROR(PrepareStatistics());
  LendInputGradient();
  const int first = chain_.FirstSaving(b_.layers);
  BoundaryTensors x;
  if (first <= last) {
    HARMONY_ASSIGN_OR_RETURN(x, Input(first));
  }
  call_.recompute = true;
  for (int index = first; index <= last; ++index) {
    Layer& layer = chain_.LayerAt(index);
    states_.push_back({x, layer.NewSaved(b_.samples, KeptPlaceOf(index))});
    BoundaryTensors y;  // of the last layer: not needed
    if (b_.kept) {
      if (index < last) y = KeptOutputsOf(index);
    } else {
      if (index < last) {
        HARMONY_ASSIGN_OR_RETURN(y, NewTensors(chain_.TypesAt(index + 1)));
      }
      HARMONY_RETURN_IF_ERROR(ForwardToReturn(index, x, y, states_.back().saved.get()));
    }
    x = std::move(y);
  }
  call_.recompute = false;
  HARMONY_RETURN_IF_ERROR(
      BackwardLayers(last, Bound(chain_.GradientTypesAt(last + 1), b_.output_gradient)));
  return FinishGradients();
}

absl::Status LayerRunner::Task::BackwardLayers(int last, BoundaryTensors output_gradients) {
  for (int index = last; index >= b_.layers.first; --index) {
    HARMONY_ASSIGN_OR_RETURN(BoundaryTensors input_gradients, InputGradient(index));
    LayerState state;
    if (!states_.empty()) {
      state = std::move(states_.back());
      states_.pop_back();
    }
    if (!chain_.HasStatistics(index)) HARMONY_RETURN_IF_ERROR(PrepareGradients(index));
    if (index == b_.layers.first) lent_.Reclaim();
    HARMONY_RETURN_IF_ERROR(
        chain_.LayerAt(index).Backward(call_, state.input.tensors, output_gradients.tensors,
                                       std::move(state.saved), input_gradients.tensors));
    output_gradients = std::move(input_gradients);
  }
  return absl::OkStatus();
}

absl::Status LayerRunner::Task::ForwardBackward() {
  const int last = b_.layers.last;
  if (last != chain_.model.num_layers() - 1) {
    return absl::InternalError("the fused task ends with the last layer");
  }
  if (!b_.loss.slot || b_.loss.total_labels <= 0) return MissingBinding("loss");
  HARMONY_RETURN_IF_ERROR(PrepareStatistics());
  LendInputGradient();
  HARMONY_ASSIGN_OR_RETURN(BoundaryTensors x, Input(b_.layers.first));
  for (int index = b_.layers.first; index < last; ++index) {
    Layer& layer = chain_.LayerAt(index);
    HARMONY_ASSIGN_OR_RETURN(BoundaryTensors y, NewTensors(chain_.TypesAt(index + 1)));
    SavedActivations* saved = nullptr;
    if (index >= chain_.FirstSaving(b_.layers)) {
      states_.push_back({x, layer.NewSaved(b_.samples, DeviceAddress())});
      saved = states_.back().saved.get();
    }
    HARMONY_RETURN_IF_ERROR(ForwardToReturn(index, x, y, saved));
    CheckTensors(index, y);
    x = std::move(y);
  }
  HARMONY_ASSIGN_OR_RETURN(BoundaryTensors dx, InputGradient(last));
  if (!chain_.HasStatistics(last)) HARMONY_RETURN_IF_ERROR(PrepareGradients(last));
  if (last == b_.layers.first) lent_.Reclaim();
  HARMONY_RETURN_IF_ERROR(
      chain_.LayerAt(last).ForwardBackward(call_, b_.loss, x.tensors, dx.tensors));
  // The sum, which a LossSlot begins with.
  CheckFinite({b_.loss.slot, DType::kF64, {1}}, {last, "loss"});
  x = BoundaryTensors();
  if (last > b_.layers.first) HARMONY_RETURN_IF_ERROR(BackwardLayers(last - 1, std::move(dx)));
  return FinishGradients();
}

void LayerRunner::Task::CheckTensors(int layer, const BoundaryTensors& outputs) {
  for (const DeviceTensor& tensor : outputs.tensors) {
    if (IsFloatingPoint(tensor.dtype)) CheckFinite(tensor, {layer});
  }
}

absl::Status LayerRunner::Task::FinishGradients() {
  if (!b_.last_microbatch && !b_.stores_gradients) return absl::OkStatus();
  const model::ModelSpec& model = chain_.model;
  for (int layer = b_.layers.last; layer >= b_.layers.first; --layer) {
    for (int reference : model.layers[static_cast<size_t>(layer)].references) {
      for (const ReferenceBinding& bound : b_.references) {
        if (bound.reference != reference || !bound.gradients) continue;
        if (b_.await_sum) HARMONY_RETURN_IF_ERROR(b_.await_sum(reference));
        FinishGradient(bound.gradients, chain_.BlockOf(reference), layer);
      }
    }
  }
  return absl::OkStatus();
}

void LayerRunner::Task::FinishGradient(DeviceAddress buffers, const model::ParamBlock& params,
                                       int layer) {
  const int own = model::WaitingSums(b_.replica);
  const int additions = b_.last_microbatch ? model::AdditionsAfter(b_.replica) : 0;
  for (int i = own; i > own - additions; --i) {
    AddGradient(chain_.device, params, GradientBuffer(buffers, i), GradientBuffer(buffers, i - 1));
  }
  if (!b_.stores_gradients) return;
  for (const DeviceTensor& tensor : StoreGradient(chain_.device, params, buffers)) {
    CheckFinite(tensor, {layer, "weight gradient", &params});
  }
}

void LayerRunner::Task::CheckFinite(const DeviceTensor& tensor, const Check& check) {
  chain_.device.CheckFinite(tensor, static_cast<int>(checks_.size()));
  checks_.push_back(check);
}

absl::Status LayerRunner::Task::Finish(const absl::Status& status) {
  const absl::StatusOr<int> failed = chain_.device.Synchronize();
  if (failed.ok() && *failed >= 0) {
    const Check& check = checks_[static_cast<size_t>(*failed)];
    std::string what = check.what;
    if (check.block != nullptr) absl::StrAppend(&what, " (", check.block->name, ")");
    return absl::InternalError(absl::StrCat("the ", what, " of layer ", check.layer,
                                            " is not finite (infinite or not a number)"));
  }
  // That a device is lost explains whatever else failed, and who hears of it starts another worker.
  if (status.ok() || absl::IsUnavailable(failed.status())) return failed.status();
  return status;
}

LayerRunner::LayerRunner(model::ModelSpec model, LayerChain layers, ComputeDevice& device)
    : chain_(new Chain(std::move(model), std::move(layers), device)) {}
LayerRunner::~LayerRunner() = default;

absl::Status LayerRunner::Run(const char* phase, const GroupBinding& binding,
                              absl::Status (Task::*body)()) {
  chain_->device.PrepareThread();
  Task task(*chain_, binding);
  absl::Status status = task.Finish((task.*body)());
  if (!absl::IsResourceExhausted(status)) return status;
  return WithContext(status, absl::StrCat(phase, " of layers ", binding.layers.first, "..",
                                          binding.layers.last, " (", binding.samples, " samples)"));
}

void LayerRunner::Advance(GroupBinding& forward) const {
  const int64_t samples = forward.samples;
  const auto slot = [&](int boundary) {
    return model::BoundaryBytes(chain_->model, boundary, samples).AlignUp(kSlotAlignment);
  };
  if (forward.input) forward.input = forward.input + slot(forward.layers.first);
  for (size_t i = 0; i < forward.batch.size(); ++i) {
    if (!forward.batch[i]) continue;
    forward.batch[i] =
        forward.batch[i] + model::InputBytes(chain_->model, static_cast<int>(i), samples);
  }
  for (BoundaryOutput& output : forward.outputs) {
    output.address = output.address + slot(output.boundary);
  }
}

absl::Status LayerRunner::RunForward(const GroupBinding& binding) {
  const int64_t one = binding.microbatch;
  if (one > 0 && binding.samples % one != 0) {
    return absl::InternalError(absl::StrCat("microbatches of ", one, " samples"));
  }
  if (one <= 0 || one == binding.samples || chain_->TakesSeveralMicrobatches(binding.layers)) {
    return Run("forward", binding, &Task::Forward);
  }
  GroupBinding part = binding;
  part.samples = one;
  for (int64_t done = 0; done < binding.samples; done += one) {
    HARMONY_RETURN_IF_ERROR(Run("forward", part, &Task::Forward));
    Advance(part);
  }
  return absl::OkStatus();
}

absl::Status LayerRunner::RunBackward(const GroupBinding& binding) {
  return Run("backward", binding, &Task::Backward);
}

absl::Status LayerRunner::RunForwardBackward(const GroupBinding& binding) {
  return Run("forward-backward", binding, &Task::ForwardBackward);
}

}  // namespace harmony::worker
