#include "common/io/weight_map.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/document/json_fields.h"

namespace harmony::io {
namespace {

bool IsIgnored(absl::string_view name, const model::CheckpointNames& names) {
  return std::any_of(names.ignored_suffixes.begin(), names.ignored_suffixes.end(),
                     [&](const std::string& suffix) { return absl::EndsWith(name, suffix); });
}

// The tensor that is stored once more under an alias; null when there is none of that name.
const model::TensorSpec* FindAlias(const model::ModelSpec& model, absl::string_view name) {
  for (const model::ParamBlock& block : model.blocks) {
    for (const model::TensorSpec& tensor : block.tensors) {
      for (const std::string& alias : tensor.aliases) {
        if (alias == name) return &tensor;
      }
    }
  }
  return nullptr;
}

// "'a', 'b', 'c' and 4 more"
std::string ListNames(const std::vector<std::string>& names) {
  constexpr size_t kShown = 5;
  std::vector<std::string> shown;
  for (size_t i = 0; i < names.size() && i < kShown; ++i) {
    shown.push_back(absl::StrCat("'", names[i].substr(0, 200), "'"));
  }
  std::string list = absl::StrJoin(shown, ", ");
  if (names.size() > kShown) absl::StrAppend(&list, " and ", names.size() - kShown, " more");
  return list;
}

absl::Status CheckEntry(const model::TensorSpec& tensor, const SafetensorsEntry& entry,
                        const std::string& path) {
  if (entry.shape != tensor.shape) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": tensor '", entry.name, "' has the shape ", ShapeString(entry.shape),
                     ", but the model asks for ", ShapeString(tensor.shape)));
  }
  if (tensor.value_dtype() != DType::kF32) {
    if (entry.dtype == tensor.value_dtype()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": tensor '", entry.name, "' is of type ", ToString(entry.dtype),
                     ", but the model's is of ", ToString(tensor.value_dtype())));
  }
  if (!IsFloatForUs(entry.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": tensor '", entry.name, "' is of type ",
                                                   ToString(entry.dtype),
                                                   "; weights must be F32, BF16 or F16"));
  }
  return absl::OkStatus();
}

std::string AnyPath(const CheckpointReader& reader) {
  return reader.tensors().empty() ? "checkpoint" : reader.PathOf(reader.tensors().begin()->first);
}

// Every tensor of the checkpoint must be one of the model's, or known to be harmless.
absl::Status CheckUnexpected(const model::ModelSpec& model, const CheckpointReader& reader,
                             const std::set<std::string>& used) {
  std::vector<std::string> unexpected;
  for (const auto& [name, entry] : reader.tensors()) {
    if (used.contains(name) || IsIgnored(name, model.checkpoint_names)) continue;
    if (const model::TensorSpec* tied = FindAlias(model, name); tied != nullptr) {
      if (entry.shape == tied->shape) continue;
      return absl::InvalidArgumentError(absl::StrCat(reader.PathOf(name), ": the tied '", name,
                                                     "' has the shape ", ShapeString(entry.shape),
                                                     ", unlike '", tied->name, "'"));
    }
    unexpected.push_back(name);
  }
  if (unexpected.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(reader.PathOf(unexpected[0]), ": holds tensors that a ", model.name,
                   " model described like this does not have: ", ListNames(unexpected)));
}

}  // namespace

WeightMap WeightMap::ForNewModel(const model::ModelSpec& model) {
  WeightMap map;
  for (const model::ParamBlock& block : model.blocks) {
    for (const model::TensorSpec& tensor : block.tensors) {
      map.stored_[tensor.name] = {tensor.name, tensor.value_dtype()};
    }
  }
  return map;
}

absl::StatusOr<WeightMap> WeightMap::Match(const model::ModelSpec& model,
                                           const CheckpointReader& reader) {
  WeightMap map;
  std::set<std::string> used;
  std::vector<std::string> missing;
  for (const model::ParamBlock& block : model.blocks) {
    for (const model::TensorSpec& tensor : block.tensors) {
      const std::string bare(
          absl::StripPrefix(tensor.name, model.checkpoint_names.optional_prefix));
      const SafetensorsEntry* entry = reader.Find(tensor.name);
      if (bare != tensor.name && reader.Find(bare) != nullptr) {
        if (entry != nullptr) {
          return absl::InvalidArgumentError(absl::StrCat(reader.PathOf(bare), ": holds both '",
                                                         bare, "' and '", tensor.name, "'"));
        }
        entry = reader.Find(bare);
      }
      if (entry == nullptr) {
        missing.push_back(tensor.name);
        continue;
      }
      HARMONY_RETURN_IF_ERROR(CheckEntry(tensor, *entry, reader.PathOf(entry->name)));
      used.insert(entry->name);
      map.stored_[tensor.name] = {entry->name, entry->dtype};
    }
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        AnyPath(reader), ": tensors that the model asks for are missing: ", ListNames(missing)));
  }
  HARMONY_RETURN_IF_ERROR(CheckUnexpected(model, reader, used));
  return map;
}

WeightMap WeightMap::WithType(const model::ModelSpec& model, DType dtype) const {
  WeightMap map = *this;
  for (const model::ParamBlock& block : model.blocks) {
    for (const model::TensorSpec& tensor : block.tensors) {
      if (tensor.value_dtype() == DType::kF32) map.stored_.at(tensor.name).dtype = dtype;
    }
  }
  return map;
}

std::string WeightMap::ToJson() const {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, stored] : stored_) {
    json[name] = {{"name", stored.name}, {"dtype", std::string(ToString(stored.dtype))}};
  }
  return json.dump();
}

absl::StatusOr<WeightMap> WeightMap::FromJson(absl::string_view json, const model::ModelSpec& model,
                                              absl::string_view where) {
  WeightMap map = ForNewModel(model);
  const absl::Status read = document::ReadJson(json, where, [&](const document::JsonField& root) {
    for (auto& [name, stored] : map.stored_) {
      const document::JsonField entry = root.Get(name.c_str());
      entry.Only({"name", "dtype"});
      stored.name = entry.Get("name").Text();
      const absl::StatusOr<DType> dtype = ParseDType(entry.Get("dtype").Text());
      // What is trained may be stored in another type; all else is stored as it is.
      const bool as_it_is = dtype.ok() && *dtype == stored.dtype;
      const bool converts = dtype.ok() && stored.dtype == DType::kF32 && IsFloatForUs(*dtype);
      if (!as_it_is && !converts) entry.Get("dtype").Wrong("is not a type of this tensor");
      stored.dtype = dtype.value_or(stored.dtype);
    }
  });
  if (!read.ok()) return absl::DataLossError(read.message());
  return map;
}

}  // namespace harmony::io
