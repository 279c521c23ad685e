#include "common/graphs/layer_check.h"

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/dtype.h"
#include "common/base/status.h"

namespace harmony::graphs {
namespace {

// What a layer's graphs may do with one of its slots.
struct Slot {
  model::ExportedTensor type;
  bool trained = false;    // a graph may compute its gradient
  bool statistic = false;  // a microbatch's forward replaces it
};

Slot SlotOf(const model::ExportedModel& exported, const model::LayerSlot& slot) {
  const auto index = static_cast<size_t>(slot.index);
  if (slot.kind == model::SlotKind::kInput) return {exported.inputs[index].tensor};
  if (slot.kind == model::SlotKind::kValue) {
    return {exported.values[index].tensor, exported.values[index].gradient};
  }
  const model::ExportedParameter& parameter = exported.parameters[index];
  Slot found;
  found.type.dtype = parameter.dtype;
  for (int64_t size : parameter.shape) found.type.shape.push_back({size, false});
  found.trained = parameter.role == model::TensorRole::kTrained;
  found.statistic = parameter.role == model::TensorRole::kStatistic;
  return found;
}

class LayerChecker {
 public:
  LayerChecker(const model::ExportedModel& exported, int layer)
      : exported_(exported),
        layer_(exported.layers[static_cast<size_t>(layer)]),
        last_(static_cast<size_t>(layer) + 1 == exported.layers.size()) {
    for (const model::LayerSlot& slot : layer_.slots) slots_.push_back(SlotOf(exported, slot));
  }

  absl::Status Check(const GraphFile& file) const {
    if (file.phases.contains(Phase::kFused) != last_) {
      return absl::InvalidArgumentError(last_ ? "the last layer's graph must be fused"
                                              : "only the last layer's graph is fused");
    }
    if (!absl::c_equal(slots_, file.slots,
                       [&](const Slot& slot, const model::ExportedTensor& in_file) {
                         return Same(slot.type, in_file);
                       })) {
      return absl::InvalidArgumentError("its slots are not of the types and shapes of its graph's");
    }
    for (const auto& [phase, text] : file.phases) {
      HARMONY_RETURN_IF_ERROR(CheckPhase(phase, text));
    }
    return absl::OkStatus();
  }

 private:
  // For every length that the model is for.
  bool Same(const model::ExportedTensor& a, const model::ExportedTensor& b) const {
    if (a.dtype != b.dtype || a.shape.size() != b.shape.size()) return false;
    const model::SequenceLengths& lengths = exported_.sequence_length;
    if (lengths.least != lengths.most) return a.shape == b.shape;
    return a.AtLength(lengths.most).shape == b.AtLength(lengths.most).shape;
  }

  absl::Status CheckPhase(Phase phase, const PhaseText& text) const {
    if (phase == Phase::kBackward) HARMONY_RETURN_IF_ERROR(CheckTangents(text));
    size_t outputs = 0, saved = 0, updates = 0;
    for (const PhaseOutput& output : text.outputs) {
      const auto index = static_cast<size_t>(output.index);
      if (output.kind == OutputKind::kOutput) ++outputs;
      if (output.kind == OutputKind::kSaved) ++saved;
      if (output.kind == OutputKind::kUpdate) ++updates;
      if (output.kind == OutputKind::kGradient && !slots_[index].trained) {
        return Wrong(phase, "makes a gradient of slot ", index, ", which has none");
      }
      if (output.kind == OutputKind::kUpdate && !slots_[index].statistic) {
        return Wrong(phase, "makes an update of slot ", index, ", which takes none");
      }
    }
    const bool forward = phase == Phase::kForward || phase == Phase::kSaving;
    if (forward && outputs != layer_.outputs.size()) {
      return Wrong(phase, "makes ", outputs, " outputs, the layer has ", layer_.outputs.size());
    }
    const size_t saved_before = exported_.graphs[static_cast<size_t>(layer_.graph)].saved.size();
    if (phase == Phase::kSaving && saved != saved_before) {
      return Wrong(phase, "saves ", saved, " tensors, model.json names ", saved_before);
    }
    const auto statistics = static_cast<size_t>(
        absl::c_count_if(slots_, [](const Slot& slot) { return slot.statistic; }));
    if ((phase == Phase::kSaving || phase == Phase::kFused) && updates != statistics) {
      return Wrong(phase, "updates ", updates, " of the layer's ", statistics, " statistics");
    }
    return absl::OkStatus();
  }

  absl::Status CheckTangents(const PhaseText& backward) const {
    for (const PhaseInput& input : backward.inputs) {
      if (input.kind != InputKind::kTangent) continue;
      const auto index = static_cast<size_t>(input.index);
      if (index >= layer_.outputs.size()) {
        return Wrong(Phase::kBackward, "reads the gradient of output ", index,
                     ", which the layer lacks");
      }
      const int value = layer_.outputs[index];
      const model::ExportedTensor& type = exported_.values[static_cast<size_t>(value)].tensor;
      if (IsFloatingPoint(type.dtype)) continue;
      return Wrong(Phase::kBackward, "reads the gradient of '", type.name, "', which has none");
    }
    return absl::OkStatus();
  }

  template <typename... Parts>
  static absl::Status Wrong(Phase phase, const Parts&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("its phase ", ToString(phase), " ", parts...));
  }

  const model::ExportedModel& exported_;
  const model::ExportedLayer& layer_;
  const bool last_;
  std::vector<Slot> slots_;
};

}  // namespace

absl::Status CheckLayer(const model::ExportedModel& exported, int layer, const GraphFile& file) {
  return WithContext(LayerChecker(exported, layer).Check(file),
                     absl::StrCat("layer ", exported.layers[static_cast<size_t>(layer)].name));
}

}  // namespace harmony::graphs
