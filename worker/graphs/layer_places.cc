#include "worker/graphs/layer_places.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace harmony::worker {
namespace {

BoundaryPlace PlaceAt(const std::vector<model::SampleTensor>& boundary, absl::string_view name) {
  BoundaryPlace place;
  int gradients = 0;
  for (size_t i = 0; i < boundary.size(); ++i) {
    const bool floating = IsFloatingPoint(boundary[i].dtype);
    if (boundary[i].name == name) {
      place.tensor = static_cast<int>(i);
      if (floating) place.gradient = gradients;
    }
    if (floating) ++gradients;
  }
  return place;
}

size_t CountGradients(const std::vector<model::SampleTensor>& boundary) {
  return static_cast<size_t>(absl::c_count_if(
      boundary, [](const model::SampleTensor& type) { return IsFloatingPoint(type.dtype); }));
}

class PlaceFinder {
 public:
  PlaceFinder(const model::ModelSpec& model, const model::ExportedModel& exported, int layer)
      : model_(model),
        exported_(exported),
        before_(model.boundaries[static_cast<size_t>(layer)]),
        behind_(model.boundaries[static_cast<size_t>(layer) + 1]),
        parameters_(model::PlacesOfParameters(exported)),
        layer_(static_cast<size_t>(layer)) {}

  absl::StatusOr<LayerPlaces> Find() {
    const model::ExportedLayer& layer = exported_.layers[layer_];
    LayerPlaces places;
    places.name = layer.name;
    places.number = static_cast<int64_t>(layer_);
    places.sequence_length = exported_.sequence_length.most;
    places.first = layer_ == 0;
    places.last = layer_ + 1 == exported_.layers.size();
    places.keeps =
        model_.cost_of(static_cast<int>(layer_)).recompute == model::Recompute::kUnlessKept;
    places.inputs = before_.size();
    places.input_gradients = CountGradients(before_);
    places.boundary_outputs = behind_.size();
    places.output_gradients = CountGradients(behind_);
    for (const model::LayerSlot& slot : layer.slots) {
      HARMONY_ASSIGN_OR_RETURN(SlotPlace place, FindSlot(slot));
      const bool input = slot.kind == model::SlotKind::kInput;
      if (input && model_.inputs[static_cast<size_t>(slot.index)].source ==
                       model::InputSource::kLabelCounts) {
        places.label_counts = slot.index;
      }
      places.slots.push_back(std::move(place));
    }
    for (int value : layer.outputs) {
      const model::ExportedTensor& type = exported_.values[static_cast<size_t>(value)].tensor;
      places.outputs.push_back({type, PlaceAt(behind_, type.name)});
      if (places.outputs.back().place.tensor == kNowhere) return Missing("value", type.name);
    }
    for (const model::SampleTensor& type : before_) {
      const BoundaryPlace to = PlaceAt(behind_, type.name);
      if (to.tensor != kNowhere) places.passed.push_back({PlaceAt(before_, type.name), to});
    }
    if (places.outputs.size() + places.passed.size() != behind_.size()) {
      return absl::InternalError("the boundary behind it has tensors that no layer makes");
    }
    return places;
  }

 private:
  static absl::Status Missing(absl::string_view what, absl::string_view name) {
    return absl::InternalError(
        absl::StrCat("the description lacks the ", what, " '", name, "' there"));
  }

  absl::StatusOr<SlotPlace> FindSlot(const model::LayerSlot& slot) const {
    SlotPlace place;
    place.kind = slot.kind;
    const auto index = static_cast<size_t>(slot.index);
    switch (slot.kind) {
      case model::SlotKind::kValue:
        place.type = exported_.values[index].tensor;
        place.value = PlaceAt(before_, place.type.name);
        if (place.value.tensor == kNowhere) return Missing("value", place.type.name);
        return place;
      case model::SlotKind::kInput:
        place.type = exported_.inputs[index].tensor;
        place.input = slot.index;
        if (index >= model_.inputs.size() || model_.inputs[index].tensor.name != place.type.name) {
          return Missing("input", place.type.name);
        }
        place.range = model_.inputs[index].range();
        return place;
      case model::SlotKind::kParameter:
        break;
    }
    const model::ExportedParameter& parameter = exported_.parameters[index];
    place.type.name = parameter.name;
    place.type.dtype = parameter.dtype;
    for (int64_t size : parameter.shape) place.type.shape.push_back({size, false});
    HARMONY_ASSIGN_OR_RETURN(place.parameter, FindParameter(index));
    return place;
  }

  absl::StatusOr<ParameterForms> FindParameter(size_t index) const {
    const model::ExportedParameter& parameter = exported_.parameters[index];
    const model::ParameterPlace& place = parameters_[index];
    ParameterForms forms;
    for (int reference : model_.layers[layer_].references) {
      if (model_.references[static_cast<size_t>(reference)].block == place.block) {
        forms.reference = reference;
      }
    }
    const model::ParamBlock& block = model_.blocks[static_cast<size_t>(place.block)];
    if (forms.reference == kNowhere || static_cast<size_t>(place.tensor) >= block.tensors.size()) {
      return Missing("parameter", parameter.name);
    }
    const model::TensorSpec& tensor = block.tensors[static_cast<size_t>(place.tensor)];
    const bool same = tensor.name == parameter.name && tensor.role == parameter.role &&
                      tensor.shape == parameter.shape && tensor.weight.dtype == parameter.dtype;
    if (!same) return Missing("parameter", parameter.name);
    forms.role = parameter.role;
    forms.weight = tensor.weight.offset;
    forms.gradient = tensor.accumulator.offset;
    forms.gradient_type = tensor.accumulator.dtype;
    return forms;
  }

  const model::ModelSpec& model_;
  const model::ExportedModel& exported_;
  const std::vector<model::SampleTensor>& before_;
  const std::vector<model::SampleTensor>& behind_;
  const std::vector<model::ParameterPlace> parameters_;
  const size_t layer_;
};

}  // namespace

absl::StatusOr<LayerPlaces> FindLayerPlaces(const model::ModelSpec& model,
                                            const model::ExportedModel& exported, int layer) {
  const size_t count = exported.layers.size();
  if (model.layers.size() != count || model.boundaries.size() != count + 1) {
    return absl::InternalError("the description has another number of layers");
  }
  return PlaceFinder(model, exported, layer).Find();
}

}  // namespace harmony::worker
