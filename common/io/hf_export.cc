#include "common/io/hf_export.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/status.h"
#include "common/io/atomic_file.h"
#include "common/io/file.h"
#include "common/io/safetensors_writer.h"

namespace harmony::io {
namespace {

constexpr int64_t kMaxCopiedFile = int64_t{1} << 30;

bool IsTokenizerFile(absl::string_view name) {
  static constexpr std::array<absl::string_view, 11> kNames = {"special_tokens_map.json",
                                                               "added_tokens.json",
                                                               "vocab.json",
                                                               "vocab.txt",
                                                               "merges.txt",
                                                               "generation_config.json",
                                                               "chat_template.jinja",
                                                               "chat_template.json",
                                                               "spiece.model",
                                                               "sentencepiece.bpe.model",
                                                               "tekken.json"};
  return absl::StartsWith(name, "tokenizer") ||
         std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

}  // namespace

absl::Status WriteWeights(const std::string& path, const model::ModelSpec& model,
                          const WeightMap& weights, const TensorValues& values,
                          const std::atomic<bool>* cancelled) {
  std::vector<TensorToWrite> tensors;
  for (const model::ParamBlock& block : model.blocks) {
    for (const model::TensorSpec& tensor : block.tensors) {
      const WeightMap::Stored& stored = weights.of(tensor);
      tensors.push_back({stored.name, stored.dtype, tensor.shape});
    }
  }
  HARMONY_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Create(path, tensors));
  writer.set_cancelled(cancelled);
  for (const model::ParamBlock& block : model.blocks) {
    for (const model::TensorSpec& tensor : block.tensors) {
      HARMONY_RETURN_IF_ERROR(writer.WriteTensor(weights.of(tensor).name, values(block, tensor)));
    }
  }
  return writer.Finish();
}

absl::Status CopyTokenizerFiles(const std::string& source_directory, const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(source_directory, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (IsTokenizerFile(name) && it->is_regular_file(ignored)) names.push_back(name);
  }
  if (error) return ErrnoStatus(error.value(), "cannot list", source_directory);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    HARMONY_ASSIGN_OR_RETURN(const std::string text,
                             ReadWholeFile(JoinPath(source_directory, name), kMaxCopiedFile));
    HARMONY_RETURN_IF_ERROR(WriteFileAtomically(JoinPath(directory, name), text));
  }
  return absl::OkStatus();
}

absl::Status ExportModel(const std::string& directory, const model::ModelSpec& model,
                         const WeightMap& weights, const TensorValues& values,
                         absl::string_view config_json, const std::string& source_directory,
                         const std::atomic<bool>* cancelled) {
  HARMONY_ASSIGN_OR_RETURN(AtomicDirectory target, AtomicDirectory::Create(directory));
  const std::string& path = target.temporary_path();
  HARMONY_RETURN_IF_ERROR(WriteFileAtomically(JoinPath(path, "config.json"), config_json));
  HARMONY_RETURN_IF_ERROR(
      WriteWeights(JoinPath(path, "model.safetensors"), model, weights, values, cancelled));
  if (!source_directory.empty()) {
    HARMONY_RETURN_IF_ERROR(CopyTokenizerFiles(source_directory, path));
  }
  return target.Commit();
}

}  // namespace harmony::io
