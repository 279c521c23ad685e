#pragma once

// Writes a Hugging Face directory that `from_pretrained` loads.

#include <atomic>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/io/weight_map.h"
#include "common/model/model_spec.h"

namespace harmony::io {

// The fp32 values of one tensor of the model: a view of where they lie, valid until the next call.
using TensorValues = std::function<absl::Span<const float>(const model::ParamBlock& block,
                                                           const model::TensorSpec& tensor)>;

// The weights as one safetensors file at `path`: the map's names and types, a tied tensor once.
// Atomic, and verified by reading back (SafetensorsWriter). `cancelled`, here and below: see
// common/base/cancel.h.
absl::Status WriteWeights(const std::string& path, const model::ModelSpec& model,
                          const WeightMap& weights, const TensorValues& values,
                          const std::atomic<bool>* cancelled = nullptr);

// config.json (verbatim), model.safetensors, and the tokenizer and generation files of
// `source_directory` (none when it is empty). `directory` appears whole or not at all; what it held
// before is replaced.
absl::Status ExportModel(const std::string& directory, const model::ModelSpec& model,
                         const WeightMap& weights, const TensorValues& values,
                         absl::string_view config_json, const std::string& source_directory,
                         const std::atomic<bool>* cancelled = nullptr);

// Copies those files into an existing directory; a source that lacks them is fine.
absl::Status CopyTokenizerFiles(const std::string& source_directory, const std::string& directory);

}  // namespace harmony::io
