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
#include "common/model/length_polynomial.h"
#include "common/model/model_spec.h"

namespace harmony::model {

// One dimension of a tensor: fixed, or so many for each sample of the microbatch.
struct Extent {
  LengthPolynomial size;
  bool per_sample = false;
  bool operator==(const Extent&) const = default;
};

struct ExportedTensor {
  std::string name;  // of an input or a value
  DType dtype = DType::kF32;
  std::vector<Extent> shape;

  ExportedTensor AtLength(int64_t length) const;
  // REQUIRES: its extents are numbers, as those of AtLength.
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
  LengthPolynomial forward_flops;
  std::vector<ExportedTensor> saved;  // without names
  // Bytes, of which the largest counts.
  struct Phase {
    LengthPolynomial per_sample, fixed;
  };
  struct Workspace {
    std::vector<Phase> forward, saving, keeping, backward, kept_backward, fused;
    std::vector<Phase> attention_sums;  // of a sample, of one of its heads: GpuAttentionSums
  } workspace;
};

// CountedLabels of any length.
struct ExportedCountedLabels {
  int input = 0;
  LengthPolynomial first;
  int64_t ignored = 0;
};

// The lengths of sequences that a model was exported for; 0: it reads no sequences.
struct SequenceLengths {
  int64_t least = 0, most = 0;
  // Whether a job chooses among them. Then amounts are polynomials, and graphs hold for all.
  bool free = false;
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
  LengthPolynomial labels_per_sample = 1;
  std::optional<ExportedCountedLabels> counted_labels;
  SequenceLengths sequence_length;

  // The same model for sequences of this length alone: all amounts are numbers. Of a model without
  // a choice it is the model itself. REQUIRES: the length is one of sequence_length's.
  ExportedModel AtLength(int64_t length) const;
};

// Whether a text is a model.json rather than a config.json.
bool IsExportedModel(absl::string_view json);

// InvalidArgument names the field, and for a directory of another version both versions.
absl::StatusOr<ExportedModel> ParseExportedModel(absl::string_view json, absl::string_view where);

// The description. Parameters of a layer that no other layer reads are one block; each that several
// layers read is a block of its own. A value crosses every boundary from the layer that makes it to
// the last one that reads it; boundary tensors have the values' names. REQUIRES: amounts are
// numbers (AtLength).
ModelSpec BuildModelSpec(const ExportedModel& exported);

// Where a parameter lies: in the block, a position among its tensors.
struct ParameterPlace {
  int block = 0;
  int tensor = 0;
};
// By parameter, in the description that BuildModelSpec makes.
std::vector<ParameterPlace> PlacesOfParameters(const ExportedModel& exported);

}  // namespace harmony::model
