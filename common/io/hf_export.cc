#include "common/io/hf_export.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/io/atomic_file.h"
#include "common/io/file.h"
#include "common/io/float_convert.h"
#include "common/io/safetensors_writer.h"
#include "common/model/exported_model.h"

namespace harmony::io {
namespace {

constexpr absl::string_view kConfigFile = "config.json";
constexpr int64_t kMaxCopiedFile = int64_t{1} << 30;

// What samples are made with; `harmony-export` takes the same along (COPIED of its directory.py).
bool IsProcessorFile(absl::string_view name) {
  static constexpr absl::string_view kBeginnings[] = {"tokenizer", "sentencepiece",
                                                      "chat_template"};
  static constexpr absl::string_view kNames[] = {"special_tokens_map.json",
                                                 "added_tokens.json",
                                                 "vocab.json",
                                                 "vocab.txt",
                                                 "merges.txt",
                                                 "generation_config.json",
                                                 "preprocessor_config.json",
                                                 "processor_config.json",
                                                 "video_preprocessor_config.json",
                                                 "spiece.model",
                                                 "tekken.json"};
  static constexpr absl::string_view kEnds[] = {".json", ".model", ".jinja"};
  const auto begins = [name](absl::string_view with) { return absl::StartsWith(name, with); };
  const auto ends = [name](absl::string_view with) { return absl::EndsWith(name, with); };
  return absl::c_linear_search(kNames, name) ||
         (absl::c_any_of(kBeginnings, begins) && absl::c_any_of(kEnds, ends));
}

// What transformers loads the weights as, where its configuration says so.
std::string ConfigWithType(std::string config_json, std::optional<DType> dtype) {
  if (!dtype) return config_json;
  const char* const type = *dtype == DType::kF32    ? "float32"
                           : *dtype == DType::kBF16 ? "bfloat16"
                                                    : "float16";
  auto config = nlohmann::ordered_json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  bool changed = false;
  for (const char* const key : {"dtype", "torch_dtype"}) {
    if (!config.is_object() || !config.contains(key) || config[key] == type) continue;
    config[key] = type;
    changed = true;
  }
  return changed ? config.dump(2) + "\n" : config_json;
}

// OutOfRange when one of them would be stored as infinite that is not.
absl::Status CheckRange(absl::Span<const float> values, const std::string& tensor, DType dtype) {
  if (dtype == DType::kF32) return absl::OkStatus();
  for (const float value : values) {
    const float stored = dtype == DType::kBF16 ? FloatFromBf16(Bf16FromFloat(value))
                                               : FloatFromF16(F16FromFloat(value));
    if (!std::isfinite(value) || std::isfinite(stored)) continue;
    return absl::OutOfRangeError(absl::StrCat(
        "tensor '", tensor, "' holds ", value, ", which is beyond the largest number of ",
        ToString(dtype), "; fp32 can hold it", dtype == DType::kF16 ? ", and so can bf16" : ""));
  }
  return absl::OkStatus();
}

// Of all that was trained, as it is stored; nothing where it differs.
std::optional<DType> StoredType(const model::ModelSpec& model, const WeightMap& weights) {
  std::optional<DType> type;
  for (const model::ParamBlock& block : model.blocks) {
    for (const model::TensorSpec& tensor : block.tensors) {
      if (tensor.role != model::TensorRole::kTrained) continue;
      const DType stored = weights.of(tensor).dtype;
      if (type && *type != stored) return std::nullopt;
      type = stored;
    }
  }
  return type;
}

}  // namespace

absl::Status WriteWeights(const std::string& path, const model::ModelSpec& model,
                          const WeightMap& weights, const TensorValues& values, WeightsFor what,
                          const std::atomic<bool>* cancelled) {
  const bool final = what == WeightsFor::kFinal;
  struct Name {
    std::string name;
    const model::ParamBlock* block;
    const model::TensorSpec* tensor;
  };
  std::vector<Name> names;
  std::vector<TensorToWrite> layout;
  for (const model::ParamBlock& block : model.blocks) {
    for (const model::TensorSpec& tensor : block.tensors) {
      if (final && !tensor.exported) continue;
      const WeightMap::Stored& stored = weights.of(tensor);
      std::vector<std::string> of_tensor = {stored.name};
      if (final && model.checkpoint_names.write_aliases) {
        of_tensor.insert(of_tensor.end(), tensor.aliases.begin(), tensor.aliases.end());
      }
      for (std::string& name : of_tensor) {
        layout.push_back({name, stored.dtype, tensor.shape});
        names.push_back({std::move(name), &block, &tensor});
      }
    }
  }
  HARMONY_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Create(path, layout));
  writer.set_cancelled(cancelled);
  for (const Name& each : names) {
    const absl::Span<const std::byte> bytes = values(*each.block, *each.tensor);
    if (each.tensor->value_dtype() != DType::kF32) {
      HARMONY_RETURN_IF_ERROR(writer.WriteBytes(each.name, bytes));
      continue;
    }
    const absl::Span<const float> numbers(reinterpret_cast<const float*>(bytes.data()),
                                          bytes.size() / sizeof(float));
    HARMONY_RETURN_IF_ERROR(CheckRange(numbers, each.name, weights.of(*each.tensor).dtype));
    HARMONY_RETURN_IF_ERROR(writer.WriteTensor(each.name, numbers));
  }
  return writer.Finish();
}

std::optional<DType> ExportTypeOf(const job::JobSpec& job) {
  switch (job.export_dtype) {
    case job::ExportType::kAsSource:
      return std::nullopt;
    case job::ExportType::kFp32:
      return DType::kF32;
    case job::ExportType::kBf16:
      return DType::kBF16;
  }
  return std::nullopt;
}

absl::Status WriteModelFiles(const std::string& directory, absl::string_view config_json,
                             const std::string& source_directory, std::optional<DType> type) {
  const bool exported = model::IsExportedModel(config_json);
  if (!exported) {
    HARMONY_RETURN_IF_ERROR(WriteFileAtomically(JoinPath(directory, kConfigFile),
                                                ConfigWithType(std::string(config_json), type)));
  }
  std::error_code error;
  if (!std::filesystem::is_directory(source_directory, error)) return absl::OkStatus();
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator it(source_directory, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    const bool wanted = IsProcessorFile(name) || (exported && name == kConfigFile);
    if (wanted && it->is_regular_file(ignored)) names.push_back(name);
  }
  if (error) return ErrnoStatus(error.value(), "cannot list", source_directory);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    HARMONY_ASSIGN_OR_RETURN(std::string text,
                             ReadWholeFile(JoinPath(source_directory, name), kMaxCopiedFile));
    if (name == kConfigFile) text = ConfigWithType(std::move(text), type);
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
  HARMONY_RETURN_IF_ERROR(
      WriteModelFiles(path, config_json, source_directory, StoredType(model, weights)));
  HARMONY_RETURN_IF_ERROR(WriteWeights(JoinPath(path, "model.safetensors"), model, weights, values,
                                       WeightsFor::kFinal, cancelled));
  return target.Commit();
}

}  // namespace harmony::io
