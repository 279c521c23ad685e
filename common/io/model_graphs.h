#pragma once

// The files of graphs in the directory of an exported model (docs/model_format.md): graphs/X.json,
// where X is the SHA-256 of what is in it, in hexadecimal.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/exported_model.h"

namespace harmony::io {

std::string GraphDigest(absl::string_view text);

struct GraphText {
  std::string path, text;
};
// DataLoss when its contents have another SHA-256; else the errors of reading a file.
absl::StatusOr<GraphText> ReadGraph(const std::string& directory, const std::string& digest);

// Whether all graphs of the model can be read. The operators in them are for who has LibTorch.
absl::Status CheckGraphs(const std::string& directory, const model::ExportedModel& exported);

}  // namespace harmony::io
