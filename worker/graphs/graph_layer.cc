#include "worker/graphs/graph_layer.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/command/objects.h"
#include "common/io/model_graphs.h"
#include "worker/device/cpu_memory.h"
#include "worker/graphs/input_gradients.h"
#include "worker/graphs/layer_graphs.h"
#include "worker/graphs/layer_places.h"
#include "worker/graphs/saved_tensors.h"
#include "worker/graphs/tensors.h"

namespace harmony::worker {
namespace {

// A statistic's new value, which takes its place when nothing reads the old one any more.
struct Update {
  size_t slot = 0;
  at::Tensor value;
};

void ThrowUnless(const absl::Status& done) { TORCH_CHECK(done.ok(), std::string(done.message())); }

class GraphLayer : public Layer {
 public:
  GraphLayer(LayerPlaces places, model::ExportedGraph described, model::LossReduction reduction,
             int64_t labels_per_sample, std::shared_ptr<const LayerGraphs> graphs,
             ComputeDevice& device)
      : places_(std::move(places)),
        described_(std::move(described)),
        reduction_(reduction),
        labels_per_sample_(labels_per_sample),
        graphs_(std::move(graphs)),
        device_(device),
        torch_(TorchDeviceOf(device.target())) {}

  Bytes KeptBytes(int64_t samples) const override;
  std::unique_ptr<SavedActivations> NewSaved(int64_t samples, DeviceAddress place) const override;
  absl::Status Forward(const LayerCall& call, Tensors inputs, Tensors outputs,
                       SavedActivations* saved) override;
  absl::Status Backward(const LayerCall& call, Tensors inputs, Tensors output_gradients,
                        std::unique_ptr<SavedActivations> saved, Tensors input_gradients) override;
  absl::Status ForwardBackward(const LayerCall& call, const LossBinding& loss, Tensors inputs,
                               Tensors input_gradients) override;

 private:
  // Which of its two places a statistic is read from.
  enum class Statistic { kOfStep, kOfMicrobatch };

  template <typename Body>
  absl::Status Guarded(Body body) const;

  at::Tensor Slot(const SlotPlace& slot, const LayerCall& call, Tensors inputs,
                  Statistic statistic) const;
  // The slots among a graph's inputs; all others are to be filled in.
  std::vector<c10::IValue> InputsOf(const Graph& graph, const LayerCall& call, Tensors inputs,
                                    Statistic statistic) const;
  const ReferenceBinding* FindReference(const LayerCall& call, const SlotPlace& slot) const;
  at::Tensor GradientOf(const LayerCall& call, const SlotPlace& slot) const;

  at::Tensor PlaceOfOutput(size_t index, const LayerCall& call, Tensors outputs) const;
  void PutOutput(size_t index, const at::Tensor& value, const LayerCall& call,
                 Tensors outputs) const;
  // Where the gradient of a slot may be made; undefined where it is added to what is there.
  at::Tensor PlaceOfGradient(size_t slot, const LayerCall& call,
                             const InputGradients& gradients) const;
  void AddGradient(size_t slot, const at::Tensor& value, const LayerCall& call,
                   InputGradients& gradients) const;
  void Apply(std::vector<Update> updates, const LayerCall& call) const;
  void CheckBatch(const LayerCall& call) const;
  // The labels that count, of the microbatch and of the whole batch.
  struct Labels {
    int64_t count = 0, total = 0;
  };
  Labels LabelsOf(const LayerCall& call, const LossBinding& loss) const;

  // Runs `saving`; no outputs: none are wanted.
  absl::Status Save(const LayerCall& call, Tensors inputs, Tensors outputs, SavedTensors& saved);
  // Where the backward makes gradients, and by which of its steps. Not that of a value which skips
  // the layer: its gradient begins with what comes back, before the first.
  std::vector<Graph::LaterPlace> LaterPlaces(const LayerCall& call) const;

  const LayerPlaces places_;
  const model::ExportedGraph described_;
  const model::LossReduction reduction_;
  const int64_t labels_per_sample_;
  const std::shared_ptr<const LayerGraphs> graphs_;
  ComputeDevice& device_;
  const c10::Device torch_;  // the same
};

template <typename Body>
absl::Status GraphLayer::Guarded(Body body) const {
  try {
    c10::InferenceMode no_autograd;
    return WithContext(body(), absl::StrCat("layer ", places_.name));
  } catch (...) {
    return StatusOfException(absl::StrCat("layer ", places_.name));
  }
}

// ---- What a graph reads ----

const ReferenceBinding* GraphLayer::FindReference(const LayerCall& call,
                                                  const SlotPlace& slot) const {
  const auto found = absl::c_find_if(call.references, [&](const ReferenceBinding& binding) {
    return binding.reference == slot.parameter.reference;
  });
  return found == call.references.end() ? nullptr : &*found;
}

// Undefined where the reference has no gradients bound: it is frozen, or the task is a forward.
at::Tensor GraphLayer::GradientOf(const LayerCall& call, const SlotPlace& slot) const {
  const ReferenceBinding* const binding = FindReference(call, slot);
  if (binding == nullptr || !binding->gradients) return at::Tensor();
  return TensorOver(binding->gradients + slot.parameter.gradient, slot.parameter.gradient_type,
                    slot.type.ShapeFor(call.samples), torch_);
}

at::Tensor GraphLayer::Slot(const SlotPlace& slot, const LayerCall& call, Tensors inputs,
                            Statistic statistic) const {
  switch (slot.kind) {
    case model::SlotKind::kValue:
      return Wrap(inputs[static_cast<size_t>(slot.value.tensor)], slot.type, call.samples, torch_);
    case model::SlotKind::kInput:
      TORCH_CHECK(static_cast<size_t>(slot.input) < call.batch.size(), "'", slot.type.name,
                  "' is not bound");
      return Wrap(call.batch[static_cast<size_t>(slot.input)], slot.type, call.samples, torch_);
    case model::SlotKind::kParameter:
      break;
  }
  if (slot.statistic() && statistic == Statistic::kOfMicrobatch && !call.first_microbatch) {
    at::Tensor before = GradientOf(call, slot);
    if (before.defined()) return before;
  }
  const ReferenceBinding* const binding = FindReference(call, slot);
  TORCH_CHECK(binding != nullptr && binding->weights, "'", slot.type.name, "' is not bound");
  return TensorOver(binding->weights + slot.parameter.weight, slot.type.dtype,
                    slot.type.ShapeFor(call.samples), torch_);
}

std::vector<c10::IValue> GraphLayer::InputsOf(const Graph& graph, const LayerCall& call,
                                              Tensors inputs, Statistic statistic) const {
  TORCH_CHECK(inputs.size() == places_.inputs, "inputs: ", inputs.size(), " are bound, not ",
              places_.inputs);
  std::vector<c10::IValue> values;
  values.reserve(graph.inputs().size());
  for (const graphs::PhaseInput& input : graph.inputs()) {
    if (input.kind == graphs::InputKind::kSlot) {
      values.push_back(
          Slot(places_.slots[static_cast<size_t>(input.index)], call, inputs, statistic));
    } else if (input.kind == graphs::InputKind::kSamples) {
      values.push_back(call.samples);
    } else if (input.kind == graphs::InputKind::kLength) {
      values.push_back(places_.sequence_length);
    } else if (input.kind == graphs::InputKind::kLayer) {
      values.push_back(places_.number);
    } else {
      values.emplace_back();
    }
  }
  return values;
}

// Ids that a table lacks would be found by the operation that looks them up, or by none.
void GraphLayer::CheckBatch(const LayerCall& call) const {
  for (const SlotPlace& slot : places_.slots) {
    if (slot.kind != model::SlotKind::kInput || !slot.range.bounded()) continue;
    const auto index = static_cast<size_t>(slot.input);
    if (index >= call.batch.size() || !call.batch[index].address) continue;
    const DeviceTensor& tensor = call.batch[index];
    std::vector<std::byte> values(
        static_cast<size_t>((SizeOf(tensor.dtype) * tensor.elements()).count()));
    ThrowUnless(device_.Read(tensor.address, absl::MakeSpan(values)));
    const int64_t position =
        model::FirstOutside(values.data(), tensor.dtype, tensor.elements(), slot.range);
    TORCH_CHECK_INDEX(position < 0, "'", slot.type.name, "' has a number at position ", position,
                      " that is not in ", ToString(slot.range));
  }
}

GraphLayer::Labels GraphLayer::LabelsOf(const LayerCall& call, const LossBinding& loss) const {
  if (places_.label_counts == kNowhere) {
    return {call.samples * labels_per_sample_, loss.total_labels};
  }
  const auto input = static_cast<size_t>(places_.label_counts);
  TORCH_CHECK(input < call.batch.size() && call.batch[input].address,
              "the numbers of labels are not bound");
  std::vector<int64_t> counts(static_cast<size_t>(2 * call.samples));
  ThrowUnless(device_.Read(call.batch[input].address,
                           absl::MakeSpan(reinterpret_cast<std::byte*>(counts.data()),
                                          counts.size() * sizeof(int64_t))));
  Labels labels{0, counts[1]};
  for (size_t i = 0; i < counts.size(); i += 2) labels.count += counts[i];
  return labels;
}

// ---- What a graph makes ----

at::Tensor GraphLayer::PlaceOfOutput(size_t index, const LayerCall& call, Tensors outputs) const {
  const OutputPlace& output = places_.outputs[index];
  return Wrap(outputs[static_cast<size_t>(output.place.tensor)], output.type, call.samples, torch_);
}

void GraphLayer::PutOutput(size_t index, const at::Tensor& value, const LayerCall& call,
                           Tensors outputs) const {
  PutInto(PlaceOfOutput(index, call, outputs), value,
          absl::StrCat("output '", places_.outputs[index].type.name, "'"));
}

at::Tensor GraphLayer::PlaceOfGradient(size_t index, const LayerCall& call,
                                       const InputGradients& gradients) const {
  const SlotPlace& slot = places_.slots[index];
  if (slot.kind != model::SlotKind::kValue) return at::Tensor();
  return gradients.PlaceOf(slot.value.gradient, slot.type.ShapeFor(call.samples));
}

void GraphLayer::AddGradient(size_t index, const at::Tensor& value, const LayerCall& call,
                             InputGradients& gradients) const {
  if (!value.defined()) return;  // zero
  const SlotPlace& slot = places_.slots[index];
  if (slot.kind == model::SlotKind::kValue) {
    gradients.Add(slot.value.gradient, value, slot.type.ShapeFor(call.samples));
    return;
  }
  at::Tensor sum = GradientOf(call, slot);
  if (!sum.defined()) return;
  // In the type of the weight, which may be narrower than that of the sum.
  TORCH_CHECK(value.sizes() == sum.sizes() && value.scalar_type() == ScalarTypeOf(slot.type.dtype),
              "the gradient of '", slot.type.name, "' is ", value.scalar_type(), " ",
              value.sizes());
  AddInto(sum, value);
}

// After the phase, for it may read a statistic after it has made the new one.
void GraphLayer::Apply(std::vector<Update> updates, const LayerCall& call) const {
  std::vector<at::Tensor> places;
  for (const Update& update : updates) {
    places.push_back(GradientOf(call, places_.slots[update.slot]));
  }
  // A statistic that takes the place of another one must not be what that has become.
  for (Update& update : updates) {
    const bool shares = absl::c_any_of(places, [&](const at::Tensor& place) {
      return place.defined() && place.storage().data() == update.value.storage().data();
    });
    if (shares) update.value = update.value.clone();
  }
  for (size_t i = 0; i < updates.size(); ++i) {
    if (!places[i].defined()) continue;
    CheckFits(updates[i].value, places[i],
              absl::StrCat("update of '", places_.slots[updates[i].slot].type.name, "'"));
    places[i].copy_(updates[i].value);
  }
}

// ---- Saved activations ----

Bytes GraphLayer::KeptBytes(int64_t samples) const {
  return places_.keeps ? SavedTensors::PlaceBytes(described_.saved, samples) : Bytes();
}

std::unique_ptr<SavedActivations> GraphLayer::NewSaved(int64_t samples, DeviceAddress place) const {
  if (places_.last || (place && !places_.keeps)) return nullptr;
  return std::make_unique<SavedTensors>(described_.saved, samples, place, torch_);
}

std::vector<Graph::LaterPlace> GraphLayer::LaterPlaces(const LayerCall& call) const {
  std::vector<Graph::LaterPlace> later;
  if (call.input_gradients.empty()) return later;
  for (const auto& [output, step] : graphs_->backward->placed()) {
    const SlotPlace& slot = places_.slots[static_cast<size_t>(output.index)];
    if (output.kind != graphs::OutputKind::kGradient || slot.kind != model::SlotKind::kValue)
      continue;
    const bool passed = absl::c_any_of(places_.passed, [&](const PassedValue& value) {
      return value.from.gradient == slot.value.gradient;
    });
    if (passed) continue;
    later.push_back({call.input_gradients[static_cast<size_t>(slot.value.gradient)], step});
  }
  return later;
}

absl::Status GraphLayer::Save(const LayerCall& call, Tensors inputs, Tensors outputs,
                              SavedTensors& saved) {
  const Graph& graph = outputs.empty() ? *graphs_->recomputing : *graphs_->saving;
  std::vector<Update> updates;
  HARMONY_RETURN_IF_ERROR(graph.Run(
      InputsOf(graph, call, inputs, Statistic::kOfMicrobatch),
      [&](const graphs::PhaseOutput& output, at::Tensor value) {
        const auto index = static_cast<size_t>(output.index);
        if (output.kind == graphs::OutputKind::kOutput) {
          PutOutput(index, value, call, outputs);
        } else if (output.kind == graphs::OutputKind::kSaved) {
          saved.Put(index, value, outputs);
        } else {
          updates.push_back({index, std::move(value)});
        }
      },
      [&](const graphs::PhaseOutput& output) {
        const auto index = static_cast<size_t>(output.index);
        if (output.kind == graphs::OutputKind::kOutput) return PlaceOfOutput(index, call, outputs);
        return output.kind == graphs::OutputKind::kSaved ? saved.PlaceOf(index) : at::Tensor();
      },
      call.lent, LaterPlaces(call)));
  Apply(std::move(updates), call);
  return absl::OkStatus();
}

// ---- The layer ----

absl::Status GraphLayer::Forward(const LayerCall& call, Tensors inputs, Tensors outputs,
                                 SavedActivations* saved) {
  if (places_.last) return absl::InternalError("the last layer runs in the fused task only");
  return Guarded([&]() -> absl::Status {
    TORCH_CHECK(outputs.size() == places_.boundary_outputs || (outputs.empty() && saved != nullptr),
                "outputs: ", outputs.size(), " are bound, not ", places_.boundary_outputs);
    CheckBatch(call);
    if (saved != nullptr) {
      HARMONY_RETURN_IF_ERROR(Save(call, inputs, outputs, static_cast<SavedTensors&>(*saved)));
    } else {
      const Graph& graph = *graphs_->forward;
      HARMONY_RETURN_IF_ERROR(graph.Run(
          InputsOf(graph, call, inputs, Statistic::kOfStep),
          [&](const graphs::PhaseOutput& output, const at::Tensor& value) {
            PutOutput(static_cast<size_t>(output.index), value, call, outputs);
          },
          [&](const graphs::PhaseOutput& output) {
            return PlaceOfOutput(static_cast<size_t>(output.index), call, outputs);
          },
          call.lent));
    }
    if (outputs.empty()) return absl::OkStatus();
    for (const PassedValue& value : places_.passed) {
      const DeviceTensor& from = inputs[static_cast<size_t>(value.from.tensor)];
      const DeviceTensor& to = outputs[static_cast<size_t>(value.to.tensor)];
      TensorOver(to.address, to.dtype, to.shape, torch_)
          .copy_(TensorOver(from.address, from.dtype, from.shape, torch_));
    }
    return absl::OkStatus();
  });
}

absl::Status GraphLayer::Backward(const LayerCall& call, Tensors inputs, Tensors output_gradients,
                                  std::unique_ptr<SavedActivations> saved,
                                  Tensors input_gradients) {
  if (places_.last) return absl::InternalError("the last layer runs in the fused task only");
  return Guarded([&]() -> absl::Status {
    SavedTensors own(described_.saved, call.samples, DeviceAddress(), torch_);
    SavedTensors& found = saved == nullptr ? own : static_cast<SavedTensors&>(*saved);
    // Null of the first layer, and of one with statistics in a group that keeps what it can.
    if (saved == nullptr) HARMONY_RETURN_IF_ERROR(Save(call, inputs, {}, own));
    InputGradients gradients(places_, output_gradients, input_gradients, device_);
    const Graph& graph = *graphs_->backward;
    std::vector<c10::IValue> values = InputsOf(graph, call, inputs, Statistic::kOfStep);
    for (size_t i = 0; i < values.size(); ++i) {
      const graphs::PhaseInput& input = graph.inputs()[i];
      const auto index = static_cast<size_t>(input.index);
      if (input.kind == graphs::InputKind::kSaved) {
        values[i] = found.Take(index);
      } else if (input.kind == graphs::InputKind::kTangent) {
        const OutputPlace& output = places_.outputs[index];
        values[i] = Wrap(output_gradients[static_cast<size_t>(output.place.gradient)], output.type,
                         call.samples, torch_);
      }
    }
    found.Clear();
    HARMONY_RETURN_IF_ERROR(graph.Run(
        std::move(values),
        [&](const graphs::PhaseOutput& output, const at::Tensor& value) {
          AddGradient(static_cast<size_t>(output.index), value, call, gradients);
        },
        [&](const graphs::PhaseOutput& output) {
          return PlaceOfGradient(static_cast<size_t>(output.index), call, gradients);
        },
        call.lent));
    gradients.Finish();
    return absl::OkStatus();
  });
}

absl::Status GraphLayer::ForwardBackward(const LayerCall& call, const LossBinding& loss,
                                         Tensors inputs, Tensors input_gradients) {
  if (!places_.last) return absl::InternalError("the fused task ends with the last layer");
  return Guarded([&]() -> absl::Status {
    CheckBatch(call);
    const Labels labels = LabelsOf(call, loss);
    const bool mean = reduction_ == model::LossReduction::kMean;
    const double scale = mean ? static_cast<double>(labels.count) : 1.0;
    auto tangent = static_cast<float>(scale / static_cast<double>(labels.total));
    InputGradients gradients(places_, {}, input_gradients, device_);
    const Graph& graph = *graphs_->fused;
    std::vector<c10::IValue> values = InputsOf(graph, call, inputs, Statistic::kOfMicrobatch);
    for (size_t i = 0; i < values.size(); ++i) {
      if (graph.inputs()[i].kind != graphs::InputKind::kTangent) continue;
      values[i] = at::from_blob(&tangent, {}, at::TensorOptions(at::kFloat)).to(torch_);
    }
    std::vector<Update> updates;
    HARMONY_RETURN_IF_ERROR(graph.Run(
        std::move(values),
        [&](const graphs::PhaseOutput& output, at::Tensor value) {
          const auto index = static_cast<size_t>(output.index);
          if (output.kind == graphs::OutputKind::kGradient) {
            AddGradient(index, value, call, gradients);
          } else if (output.kind == graphs::OutputKind::kUpdate) {
            updates.push_back({index, std::move(value)});
          } else {
            TORCH_CHECK(value.numel() == 1 && value.scalar_type() == at::kFloat, "the loss is ",
                        value.scalar_type(), " ", value.sizes());
            const double number = value.item<float>();
            const command::LossSlot slot{number * scale, labels.count};
            ThrowUnless(device_.Write(
                loss.slot,
                absl::MakeSpan(reinterpret_cast<const std::byte*>(&slot), sizeof(slot))));
          }
        },
        [&](const graphs::PhaseOutput& output) {
          if (output.kind != graphs::OutputKind::kGradient) return at::Tensor();
          return PlaceOfGradient(static_cast<size_t>(output.index), call, gradients);
        },
        call.lent));
    Apply(std::move(updates), call);
    gradients.Finish();
    return absl::OkStatus();
  });
}

}  // namespace

absl::StatusOr<LayerChain> MakeGraphLayers(const model::ModelSpec& model,
                                           const model::ExportedModel& exported,
                                           const std::string& directory, ComputeDevice& device) {
  HARMONY_ASSIGN_OR_RETURN(const std::vector<io::GraphOfModel> read,
                           io::ReadGraphs(directory, exported));
  std::vector<std::shared_ptr<const LayerGraphs>> bound(read.size());
  LayerChain layers;
  for (size_t i = 0; i < exported.layers.size(); ++i) {
    const model::ExportedLayer& layer = exported.layers[i];
    const auto number = static_cast<size_t>(layer.graph);
    const std::string where = absl::StrCat("layer ", layer.name);
    if (bound[number] == nullptr) {
      absl::StatusOr<LayerGraphs> made = BindLayerGraphs(
          read[number].file, read[number].path, exported.torch, TorchDeviceOf(device.target()));
      if (!made.ok()) return WithContext(made.status(), where);
      bound[number] = std::make_shared<const LayerGraphs>(*std::move(made));
    }
    absl::StatusOr<LayerPlaces> places = FindLayerPlaces(model, exported, static_cast<int>(i));
    if (!places.ok()) return WithContext(places.status(), where);
    layers.push_back(std::make_unique<GraphLayer>(
        *std::move(places), exported.graphs[number], exported.reduction,
        exported.labels_per_sample.number(), bound[number], device));
  }
  return layers;
}

}  // namespace harmony::worker
