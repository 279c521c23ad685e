#include "common/io/weight_map.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/model/strict_json.h"

namespace harmony {
namespace {

constexpr absl::string_view kHeadName = "lm_head.weight";

std::string WithoutPrefix(const TensorSpec& tensor, Family family) {
  return std::string(
      absl::StripPrefix(tensor.name, family == Family::kGpt2 ? "transformer." : "model."));
}

// Buffers that are no parameters: causal masks and rotary frequencies, computed anew by everyone.
bool IsKnownBuffer(absl::string_view name, Family family) {
  if (family == Family::kGpt2) {
    return absl::EndsWith(name, ".attn.bias") || absl::EndsWith(name, ".attn.masked_bias");
  }
  return absl::EndsWith(name, ".rotary_emb.inv_freq");
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

absl::Status CheckEntry(const TensorSpec& tensor, const SafetensorsEntry& entry,
                        const std::string& path) {
  if (entry.shape != tensor.shape) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": tensor '", entry.name, "' has the shape ", ShapeString(entry.shape),
                     ", but config.json asks for ", ShapeString(tensor.shape)));
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
absl::Status CheckUnexpected(const ModelSpec& model, const CheckpointReader& reader,
                             const std::set<std::string>& used) {
  const ModelConfig& config = model.config;
  std::vector<std::string> unexpected;
  for (const auto& [name, entry] : reader.tensors()) {
    if (used.contains(name) || IsKnownBuffer(name, config.family)) continue;
    if (config.tie_word_embeddings && name == kHeadName) {
      if (entry.shape == std::vector<int64_t>{config.vocab_size, config.hidden_size}) continue;
      return absl::InvalidArgumentError(absl::StrCat(reader.PathOf(name), ": the tied head '", name,
                                                     "' has the shape ", ShapeString(entry.shape),
                                                     ", unlike the token table"));
    }
    unexpected.push_back(name);
  }
  if (unexpected.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(reader.PathOf(unexpected[0]), ": holds tensors that a ", config.model_type,
                   " model of this config.json does not have: ", ListNames(unexpected)));
}

}  // namespace

WeightMap WeightMap::ForNewModel(const ModelSpec& model) {
  WeightMap map;
  for (const ParamBlock& block : model.blocks) {
    for (const TensorSpec& tensor : block.tensors) {
      map.stored_[tensor.name] = {tensor.name, DType::kF32};
    }
  }
  return map;
}

absl::StatusOr<WeightMap> WeightMap::Match(const ModelSpec& model, const CheckpointReader& reader) {
  WeightMap map;
  std::set<std::string> used;
  std::vector<std::string> missing;
  for (const ParamBlock& block : model.blocks) {
    for (const TensorSpec& tensor : block.tensors) {
      const std::string bare = WithoutPrefix(tensor, model.config.family);
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
        AnyPath(reader), ": tensors that config.json asks for are missing: ", ListNames(missing)));
  }
  HARMONY_RETURN_IF_ERROR(CheckUnexpected(model, reader, used));
  return map;
}

std::string WeightMap::ToJson() const {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, stored] : stored_) {
    json[name] = {{"name", stored.name}, {"dtype", std::string(ToString(stored.dtype))}};
  }
  return json.dump();
}

absl::StatusOr<WeightMap> WeightMap::FromJson(absl::string_view json, const ModelSpec& model,
                                              absl::string_view where) {
  HARMONY_ASSIGN_OR_RETURN(const nlohmann::json parsed, ParseStrictJson(json, where));
  WeightMap map = ForNewModel(model);
  for (auto& [name, stored] : map.stored_) {
    const auto entry = parsed.is_object() ? parsed.find(name) : parsed.end();
    if (!parsed.is_object() || entry == parsed.end() || !entry->is_object() ||
        !entry->contains("name") || !entry->at("name").is_string() || !entry->contains("dtype") ||
        !entry->at("dtype").is_string()) {
      return absl::DataLossError(absl::StrCat(where, ": no entry for tensor '", name, "'"));
    }
    stored.name = entry->at("name").get<std::string>();
    HARMONY_ASSIGN_OR_RETURN(stored.dtype, ParseDType(entry->at("dtype").get<std::string>()));
    if (!IsFloatForUs(stored.dtype)) {
      return absl::DataLossError(absl::StrCat(where, ": tensor '", name, "' has no float type"));
    }
  }
  return map;
}

}  // namespace harmony
