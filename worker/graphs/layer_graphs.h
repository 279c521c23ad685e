#pragma once

// The graphs of one layer, or of all layers that compute alike: a file of an exported model's
// directory (docs/model_format.md), bound to the operators of this LibTorch.

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/graphs/graph_file.h"
#include "common/model/exported_model.h"
#include "worker/graphs/graph.h"

namespace harmony::worker {

// Immutable once made. The last layer has `fused`, all others the rest.
struct LayerGraphs {
  std::vector<model::ExportedTensor> slots;  // their types for any length, without names
  std::optional<Graph> forward;
  std::optional<Graph> saving;
  // What `saving` leaves for the backward, where nobody wants the outputs.
  std::optional<Graph> recomputing;
  std::optional<Graph> backward;
  std::optional<Graph> fused;
};

// `where` is the file, `torch` the version of PyTorch that made it. Errors: those of Graph::Bind.
absl::StatusOr<LayerGraphs> BindLayerGraphs(const graphs::GraphFile& file, absl::string_view where,
                                            absl::string_view torch, c10::Device device);

}  // namespace harmony::worker
