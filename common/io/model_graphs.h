#pragma once

// The files of graphs in the directory of an exported model (docs/model_format.md): graphs/X.json,
// where X is the SHA-256 of what is in it, in hexadecimal.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/graphs/graph_file.h"
#include "common/model/exported_model.h"

namespace harmony::io {

std::string GraphDigest(absl::string_view text);

// One file of graphs: where it lies, and what it says.
struct GraphOfModel {
  std::string path;
  graphs::GraphFile file;
};

// By graph of the model, each held against the layers that name it; what LibTorch has to know of
// the operators in it is for who has LibTorch. Errors name the layer and the file: DataLoss when
// its contents have another SHA-256, InvalidArgument when it does not fit, else those of reading.
absl::StatusOr<std::vector<GraphOfModel>> ReadGraphs(const std::string& directory,
                                                     const model::ExportedModel& exported);

}  // namespace harmony::io
