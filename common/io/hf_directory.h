#pragma once

// A model as a job names it: a preset, or a Hugging Face directory.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/model_config.h"

namespace harmony::io {

struct ModelSource {
  std::string config_json;  // verbatim
  std::string directory;    // empty for a preset
  bool has_tokenizer = false;
  model::ModelConfig config;
};

// `model_name_or_path` is a preset's name or a directory with config.json. NotFound says which
// presets there are when it is neither.
absl::StatusOr<ModelSource> OpenModelSource(const std::string& model_name_or_path);

}  // namespace harmony::io
