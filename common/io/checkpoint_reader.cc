#include "common/io/checkpoint_reader.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/document/strict_json.h"
#include "common/io/float_convert.h"

namespace harmony::io {
namespace {

constexpr absl::string_view kSingleName = "model.safetensors";
constexpr absl::string_view kIndexName = "model.safetensors.index.json";
constexpr int64_t kReadElements = 1 << 17;  // of 16 bits
constexpr int64_t kCompareBytes = 1 << 20;

// The index's map from tensor to file name, each checked to be a plain name.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  HARMONY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kMaxSafetensorsHeader));
  HARMONY_ASSIGN_OR_RETURN(const nlohmann::json json, document::ParseStrictJson(text, path));
  if (!json.is_object() || !json.contains("weight_map") || !json.at("weight_map").is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": 'weight_map' is missing or no object"));
  }
  std::map<std::string, std::string> weight_map;
  for (const auto& [tensor, value] : json.at("weight_map").items()) {
    const std::string name = value.is_string() ? value.get<std::string>() : "";
    // The index must not lead outside its directory.
    if (!absl::EndsWith(name, ".safetensors") || absl::StrContains(name, '/') ||
        absl::StrContains(name, '\0')) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": 'weight_map' names no *.safetensors ",
                                                     "file for tensor '", tensor, "'"));
    }
    weight_map[tensor] = name;
  }
  return weight_map;
}

}  // namespace

absl::Status CheckpointReader::AddFile(const std::string& path) {
  HARMONY_ASSIGN_OR_RETURN(File file, File::OpenForReading(path));
  HARMONY_ASSIGN_OR_RETURN(std::vector<SafetensorsEntry> entries, ReadSafetensorsHeader(file));
  const int index = static_cast<int>(files_.size());
  for (SafetensorsEntry& entry : entries) {
    if (!file_of_.emplace(entry.name, index).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor '", entry.name, "' is also in ", PathOf(entry.name)));
    }
    std::string name = entry.name;
    tensors_.emplace(std::move(name), std::move(entry));
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<CheckpointReader> CheckpointReader::OpenFile(const std::string& path) {
  CheckpointReader reader;
  HARMONY_RETURN_IF_ERROR(reader.AddFile(path));
  return reader;
}

absl::StatusOr<CheckpointReader> CheckpointReader::OpenDirectory(const std::string& directory) {
  const std::string single = JoinPath(directory, kSingleName);
  const std::string index = JoinPath(directory, kIndexName);
  std::error_code error;
  if (std::filesystem::exists(single, error)) return OpenFile(single);
  if (!std::filesystem::exists(index, error)) {
    return absl::NotFoundError(absl::StrCat(directory, ": has neither ", kSingleName, " nor ",
                                            kIndexName,
                                            "; weights in another format must be converted to "
                                            "safetensors first (or use init: random)"));
  }
  HARMONY_ASSIGN_OR_RETURN(const auto weight_map, ReadIndex(index));
  std::set<std::string> names;
  for (const auto& [tensor, name] : weight_map) names.insert(name);
  CheckpointReader reader;
  for (const std::string& name : names) {
    HARMONY_RETURN_IF_ERROR_CTX(reader.AddFile(JoinPath(directory, name)), index);
  }
  for (const auto& [tensor, name] : weight_map) {
    if (reader.Find(tensor) == nullptr || reader.PathOf(tensor) != JoinPath(directory, name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(index, ": tensor '", tensor, "' is not in ", name, ", as it says"));
    }
  }
  for (const auto& [tensor, entry] : reader.tensors()) {
    if (!weight_map.contains(tensor)) {
      return absl::InvalidArgumentError(absl::StrCat(index, ": tensor '", tensor, "' in ",
                                                     reader.PathOf(tensor), " is not listed"));
    }
  }
  return reader;
}

const SafetensorsEntry* CheckpointReader::Find(absl::string_view name) const {
  const auto it = tensors_.find(std::string(name));
  return it == tensors_.end() ? nullptr : &it->second;
}

const std::string& CheckpointReader::PathOf(absl::string_view name) const {
  return files_[file_of_.at(std::string(name))].path();
}

absl::Status CheckpointReader::ReadF32(absl::string_view name, absl::Span<float> out) const {
  const SafetensorsEntry* entry = Find(name);
  if (entry == nullptr) return absl::NotFoundError(absl::StrCat("no tensor '", name, "'"));
  const File& file = files_[file_of_.at(entry->name)];
  if (!IsFloatForUs(entry->dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor '", name, "' is of type ",
                                                   ToString(entry->dtype),
                                                   "; weights must be F32, BF16 or F16"));
  }
  if (entry->elements() != static_cast<int64_t>(out.size())) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor '", name, "' has ",
                                                   entry->elements(), " elements, not ",
                                                   out.size()));
  }
  if (entry->dtype == DType::kF32) {
    return file.ReadAt(entry->begin, out.data(), entry->end - entry->begin);
  }
  std::vector<uint16_t> buffer(
      static_cast<size_t>(std::min<int64_t>(kReadElements, entry->elements())));
  for (int64_t done = 0; done < entry->elements();) {
    const int64_t count = std::min<int64_t>(kReadElements, entry->elements() - done);
    HARMONY_RETURN_IF_ERROR(file.ReadAt(entry->begin + 2 * done, buffer.data(), 2 * count));
    const auto in = absl::MakeConstSpan(buffer).subspan(0, static_cast<size_t>(count));
    const auto target = out.subspan(static_cast<size_t>(done), static_cast<size_t>(count));
    entry->dtype == DType::kBF16 ? FloatsFromBf16(in, target) : FloatsFromF16(in, target);
    done += count;
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::Read(absl::string_view name, DType dtype,
                                    absl::Span<std::byte> out) const {
  if (dtype == DType::kF32) {
    return ReadF32(name, {reinterpret_cast<float*>(out.data()), out.size() / sizeof(float)});
  }
  const SafetensorsEntry* entry = Find(name);
  if (entry == nullptr) return absl::NotFoundError(absl::StrCat("no tensor '", name, "'"));
  const File& file = files_[file_of_.at(entry->name)];
  if (entry->dtype != dtype || entry->end - entry->begin != static_cast<int64_t>(out.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.path(), ": tensor '", name, "' has ", entry->end - entry->begin, " bytes of ",
        ToString(entry->dtype), ", not ", out.size(), " of ", ToString(dtype)));
  }
  return file.ReadAt(entry->begin, out.data(), entry->end - entry->begin);
}

absl::StatusOr<bool> CheckpointReader::SameBytes(absl::string_view a, absl::string_view b) const {
  const SafetensorsEntry *one = Find(a), *other = Find(b);
  const int64_t size = one->end - one->begin;
  if (one->dtype != other->dtype || size != other->end - other->begin) return false;
  std::vector<char> left(static_cast<size_t>(std::min(size, kCompareBytes))), right = left;
  for (int64_t at = 0; at < size; at += kCompareBytes) {
    const int64_t count = std::min(size - at, kCompareBytes);
    HARMONY_RETURN_IF_ERROR(
        files_[file_of_.at(one->name)].ReadAt(one->begin + at, left.data(), count));
    HARMONY_RETURN_IF_ERROR(
        files_[file_of_.at(other->name)].ReadAt(other->begin + at, right.data(), count));
    if (std::memcmp(left.data(), right.data(), static_cast<size_t>(count)) != 0) return false;
  }
  return true;
}

}  // namespace harmony::io
