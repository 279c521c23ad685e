#pragma once

// The graphs of one layer, or of all layers that compute alike: a file of an exported model's
// directory (docs/model_format.md), checked and bound.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
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

// Errors: those of ParseGraphFile and Graph::Bind, which begin with `where`.
absl::StatusOr<LayerGraphs> BindLayerGraphs(absl::string_view text, absl::string_view where,
                                            absl::string_view torch, c10::Device device);

// Of a graph in the directory, made by that version of PyTorch. Errors: those of io::ReadGraph and
// of BindLayerGraphs.
absl::StatusOr<std::shared_ptr<const LayerGraphs>> LoadLayerGraphs(const std::string& directory,
                                                                   const std::string& digest,
                                                                   absl::string_view torch,
                                                                   c10::Device device);

}  // namespace harmony::worker
