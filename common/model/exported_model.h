#pragma once

// The model.json of a directory that harmony-export made (docs/model_format.md), parsed and
// checked: a source of model descriptions, and what the layers that run its graphs are made from.
// PURE.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/dtype.h"
#include "common/model/layer_cost.h"
#include "common/model/model_spec.h"

namespace harmony::model {

// One dimension of a tensor: fixed, or so many for each sample of the microbatch.
struct Extent {
  int64_t size = 0;
  bool per_sample = false;
  int64_t At(int64_t samples) const { return per_sample ? size * samples : size; }
  bool operator==(const Extent&) const = default;
};

struct ExportedTensor {
  std::string name;  // of an input or a value
  DType dtype = DType::kF32;
  std::vector<Extent> shape;

  std::vector<int64_t> ShapeFor(int64_t samples) const;
};

struct ExportedInput {
  ExportedTensor tensor;
  int64_t values_below = 0;
  InputSource source = InputSource::kData;
};

struct ExportedValue {
  ExportedTensor tensor;
  bool gradient = false;
};

struct ExportedParameter {
  std::string name;
  std::vector<std::string> aliases;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  TensorRole role = TensorRole::kTrained;
  bool weight_decay = false;
  bool exported = true;
};

enum class SlotKind { kValue, kInput, kParameter };
struct LayerSlot {
  SlotKind kind = SlotKind::kValue;
  int index = 0;  // into values, inputs or parameters
};

struct ExportedLayer {
  std::string name;
  int graph = 0;  // into graphs
  std::vector<LayerSlot> slots;
  std::vector<int> outputs;  // into values
};

struct ExportedGraph {
  std::string digest;  // SHA-256 of the file graphs/<digest>.json
  double forward_flops = 0;
  std::vector<ExportedTensor> saved;  // without names
  struct Workspace {
    BytesBySamples forward, saving, keeping, backward, kept_backward, fused;
  } workspace;
};

enum class LossReduction { kMean, kSum };

struct ExportedModel {
  std::string name;
  std::string torch;  // the version that made it
  std::vector<ExportedInput> inputs;
  std::vector<ExportedValue> values;
  std::vector<ExportedParameter> parameters;
  std::vector<ExportedLayer> layers;
  std::vector<ExportedGraph> graphs;
  LossReduction reduction = LossReduction::kMean;
  int64_t labels_per_sample = 1;
  std::optional<CountedLabels> counted_labels;
  int64_t sequence_length = 0;  // 0: the model reads no sequences
};

// Whether a text is a model.json rather than a config.json.
bool IsExportedModel(absl::string_view json);

// InvalidArgument names the field, and for a directory of another version both versions.
absl::StatusOr<ExportedModel> ParseExportedModel(absl::string_view json, absl::string_view where);

// The description. Parameters of a layer that no other layer reads are one block; each that several
// layers read is a block of its own. A value crosses every boundary from the layer that makes it to
// the last one that reads it; boundary tensors have the values' names.
ModelSpec BuildModelSpec(const ExportedModel& exported);

// Where a parameter lies: in the block, a position among its tensors.
struct ParameterPlace {
  int block = 0;
  int tensor = 0;
};
// By parameter, in the description that BuildModelSpec makes.
std::vector<ParameterPlace> PlacesOfParameters(const ExportedModel& exported);

}  // namespace harmony::model
