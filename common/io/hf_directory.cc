#include "common/io/hf_directory.h"

#include <xxhash.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/io/file.h"
#include "common/model/padding_token.h"

namespace harmony::io {
namespace {

constexpr int64_t kMaxConfigBytes = 16 << 20;

std::string ContentOf(const ModelSource& source) {
  const auto* const config = std::get_if<model::ModelConfig>(&source.architecture);
  std::string text;
  if (config != nullptr) {
    text = absl::StrCat(model::ArithmeticText(*config), model::PaddingToken(source.config_json));
  } else {
    nlohmann::json json = nlohmann::json::parse(source.config_json);
    json.erase("torch");  // which it was exported with
    text = json.dump();   // the same however it is written: keys are sorted
  }
  return absl::StrFormat("%016x", XXH3_64bits(text.data(), text.size()));
}

}  // namespace

absl::StatusOr<ModelSource> OpenModelSource(const std::string& model_name_or_path) {
  ModelSource source;
  std::string where = absl::StrCat("preset ", model_name_or_path);
  if (auto preset = model::PresetConfigJson(model_name_or_path); preset.ok()) {
    source.config_json = *std::move(preset);
  } else {
    std::error_code error;
    if (!std::filesystem::is_directory(model_name_or_path, error)) {
      return absl::NotFoundError(absl::StrCat("model_name_or_path: '", model_name_or_path,
                                              "' is neither a directory nor a preset (",
                                              absl::StrJoin(model::PresetNames(), ", "),
                                              "); of a model on the Hugging Face hub, give the "
                                              "directory that it was downloaded to"));
    }
    source.directory = model_name_or_path;
    where = JoinPath(model_name_or_path, "model.json");
    if (!std::filesystem::exists(where, error)) {
      where = JoinPath(model_name_or_path, "config.json");
    }
    HARMONY_ASSIGN_OR_RETURN(source.config_json, ReadWholeFile(where, kMaxConfigBytes));
    if (IsGitLfsPointer(source.config_json)) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": is ", kGitLfsAdvice));
    }
    for (const char* name : {"tokenizer.json", "tokenizer.model", "tokenizer_config.json"}) {
      source.has_tokenizer |= std::filesystem::exists(JoinPath(model_name_or_path, name), error);
    }
  }
  HARMONY_ASSIGN_OR_RETURN(source.architecture,
                           model::ParseArchitecture(source.config_json, where));
  source.content = ContentOf(source);
  return source;
}

absl::StatusOr<CheckpointReader> OpenWeights(const ModelSource& source) {
  if (std::holds_alternative<model::ExportedModel>(source.architecture)) {
    return CheckpointReader::OpenFile(JoinPath(source.directory, "weights.safetensors"));
  }
  return CheckpointReader::OpenDirectory(source.directory);
}

}  // namespace harmony::io
