#pragma once

// A model as a job names it: a preset, a Hugging Face directory, or the directory of an exported
// model.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/checkpoint_reader.h"
#include "common/model/architecture.h"

namespace harmony::io {

struct ModelSource {
  std::string config_json;  // or the model.json, verbatim
  std::string directory;    // empty for a preset
  bool has_tokenizer = false;
  // A checksum of what it computes (JobSpec::model_content): of an exported model all that its
  // model.json says, which names its graphs by their digests.
  std::string content;
  model::Architecture architecture;
};

// `model_name_or_path` is a preset's name or a directory with model.json (an exported model) or
// config.json. NotFound says which presets there are when it is neither.
absl::StatusOr<ModelSource> OpenModelSource(const std::string& model_name_or_path);

// The weights that lie in the model's directory. REQUIRES: it has one.
absl::StatusOr<CheckpointReader> OpenWeights(const ModelSource& source);

}  // namespace harmony::io
