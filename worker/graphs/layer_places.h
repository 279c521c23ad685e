#pragma once

// Where a layer of an exported model finds what its graphs name: which tensor of a call each slot,
// output and pass-through is. Worked out once for a layer, from the two descriptions that have to
// agree.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/exported_model.h"
#include "common/model/model_spec.h"

namespace harmony::worker {

inline constexpr int kNowhere = -1;

// A tensor of a boundary: its position there, and among those of the boundary that have gradients.
struct BoundaryPlace {
  int tensor = kNowhere;
  int gradient = kNowhere;
};

// A parameter: in the buffers of a reference (ReferenceBinding), which is one of ModelSpec's.
struct ParameterForms {
  int reference = kNowhere;
  model::TensorRole role = model::TensorRole::kTrained;
  Bytes weight, gradient;             // offsets
  DType gradient_type = DType::kF32;  // that it is added up in; a statistic hands on its own type
};

struct SlotPlace {
  model::SlotKind kind = model::SlotKind::kValue;
  model::ExportedTensor type;  // with its name
  BoundaryPlace value;         // of the boundary that enters the layer
  int input = kNowhere;        // among the batch inputs
  model::ValueRange range;     // of the integers of a batch input
  ParameterForms parameter;

  bool statistic() const {
    return kind == model::SlotKind::kParameter && parameter.role == model::TensorRole::kStatistic;
  }
};

struct OutputPlace {
  model::ExportedTensor type;
  BoundaryPlace place;  // of the boundary behind the layer
};

// A value that a later layer reads and an earlier one made.
struct PassedValue {
  BoundaryPlace from, to;
};

struct LayerPlaces {
  std::string name;
  int64_t number = 0;           // of the layer in the chain
  int64_t sequence_length = 0;  // 0: the model reads no sequences
  bool first = false, last = false;
  // Whether a forward may keep what it saves for its backward, in another task.
  bool keeps = false;
  int label_counts = kNowhere;  // among the batch inputs, where labels are counted
  std::vector<SlotPlace> slots;
  std::vector<OutputPlace> outputs;
  std::vector<PassedValue> passed;
  // Tensors of the boundary before the layer and of the one behind it, and those with gradients.
  size_t inputs = 0, input_gradients = 0;
  size_t boundary_outputs = 0, output_gradients = 0;
};

// Internal when the model lacks what the layer needs.
absl::StatusOr<LayerPlaces> FindLayerPlaces(const model::ModelSpec& model,
                                            const model::ExportedModel& exported, int layer);

}  // namespace harmony::worker
