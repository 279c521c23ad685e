#pragma once

// An exported model for tests, small and of many kinds: a table that two layers share, a value that
// skips a layer and is read again, statistics of two types, a layer that keeps tensors of odd
// strides, integers from the data set.

#include <string>

#include "absl/status/statusor.h"
#include "common/model/exported_model.h"
#include "common/model/model_spec.h"
#include "worker/device/cpu_device.h"
#include "worker/layers/layer.h"

namespace harmony::worker {

// Layers: "table", "norm" (with statistics), "mix", "head".
//   table  v0 = table[ids], v1 = 2 v0
//   norm   v2 = tanh(v0 * scale); mean = 0.9 mean + 0.1 mean(v0); count = count + 1
//   mix    v3 = relu(v2 weight^T) + v1 * (the sum of the table's rows)
//   head   the cross entropy of (v3 + v1) head^T and the labels
// A sample has kTokens ids and as many labels; all other tensors are kWidth wide.
inline constexpr int64_t kIds = 11, kTokens = 4, kWidth = 3, kClasses = 5;
inline constexpr int kNormLayer = 1, kMixLayer = 2, kHeadLayer = 3;

// A directory with the model's graphs, gone with the object.
class ExportedFixture {
 public:
  explicit ExportedFixture(model::LossReduction reduction = model::LossReduction::kMean);
  ~ExportedFixture();
  ExportedFixture(const ExportedFixture&) = delete;
  ExportedFixture& operator=(const ExportedFixture&) = delete;

  // REQUIRES: `text` is a graph file's. The layer's graph is this one from now on.
  void SetGraph(int layer, const std::string& text);
  absl::StatusOr<LayerChain> MakeLayers() const {
    return MakeLayersOf(model::BuildModelSpec(exported));
  }
  absl::StatusOr<LayerChain> MakeLayersOf(const model::ModelSpec& model) const;
  std::string PathOf(int layer) const;  // of its graphs

  model::ExportedModel exported;
  mutable CpuDevice device;  // of the layers
  const std::string directory;
};

// The text of a layer's graph file.
std::string GraphOf(int layer, model::LossReduction reduction = model::LossReduction::kMean);

}  // namespace harmony::worker
