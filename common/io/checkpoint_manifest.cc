#include "common/io/checkpoint_manifest.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/cancel.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/document/json_fields.h"
#include "common/io/atomic_file.h"
#include "common/io/file.h"
#include "common/io/fingerprint_json.h"
#include "common/io/resolved_keys_json.h"

namespace harmony::io {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kPrefix = "checkpoint-";
constexpr char kManifestName[] = "manifest.json";
// Small beside what the process needs anyway: resuming must not take more than training.
constexpr int64_t kPieceBytes = 256 << 10;

absl::StatusOr<CheckpointManifest::FileEntry> Describe(const std::string& directory,
                                                       const std::string& name,
                                                       const std::atomic<bool>* cancelled) {
  HARMONY_ASSIGN_OR_RETURN(const File file, File::OpenForReading(JoinPath(directory, name)));
  CheckpointManifest::FileEntry entry;
  entry.name = name;
  HARMONY_ASSIGN_OR_RETURN(entry.size, file.Size());
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  std::vector<char> piece(static_cast<size_t>(std::min(entry.size, kPieceBytes)));
  for (int64_t offset = 0; offset < entry.size; offset += kPieceBytes) {
    HARMONY_RETURN_IF_ERROR(CheckNotCancelled(cancelled));
    const int64_t bytes = std::min(kPieceBytes, entry.size - offset);
    HARMONY_RETURN_IF_ERROR(file.ReadAt(offset, piece.data(), bytes));
    XXH3_64bits_update(state.get(), piece.data(), static_cast<size_t>(bytes));
  }
  entry.hash = XXH3_64bits_digest(state.get());
  return entry;
}

// Of a file of a checkpoint that cannot be read: damaged where it is not there.
absl::Status Unreadable(const absl::Status& status) {
  return absl::IsNotFound(status) ? absl::DataLossError(status.message()) : status;
}

absl::Status Damaged(absl::string_view path, absl::string_view why) {
  return absl::DataLossError(absl::StrCat(path, ": ", why));
}

absl::StatusOr<CheckpointManifest> ParseManifest(const std::string& text, const std::string& path) {
  CheckpointManifest manifest;
  const absl::Status read = document::ReadJson(text, path, [&](const document::JsonField& root) {
    root.Only({"step", "micro_batch_size", "virtual_replicas", "sum_order", "gradient_dtype",
               "result_keys", "details", "files"});
    manifest.step = root.Get("step").Integer(0);
    manifest.result_keys = root.Get("result_keys").Text();
    manifest.resolved = ReadResolvedKeys(root);
    manifest.details_json = root.Get("details").Source();
    for (const document::JsonField& item : root.Get("files").Items()) {
      item.Only({"name", "size", "xxh3"});
      CheckpointManifest::FileEntry& entry = manifest.files.emplace_back();
      entry.name = item.Get("name").Text();
      entry.size = item.Get("size").Integer(0);
      entry.hash = ReadHash(item.Get("xxh3"));
      if (entry.name.empty() || absl::StrContains(entry.name, '/')) {
        item.Get("name").Wrong("must be the name of a file");
      }
    }
  });
  if (!read.ok()) return absl::DataLossError(read.message());
  return manifest;
}

}  // namespace

std::string CheckpointName(int64_t step) { return absl::StrCat(kPrefix, step); }

absl::Status WriteManifest(const std::string& directory, CheckpointManifest manifest,
                           const std::atomic<bool>* cancelled) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool regular = entry->is_regular_file(error);
    if (error) break;
    if (name == kManifestName || !regular) continue;
    HARMONY_ASSIGN_OR_RETURN(CheckpointManifest::FileEntry file,
                             Describe(directory, name, cancelled));
    manifest.files.push_back(std::move(file));
  }
  if (error) return ErrnoStatus(error.value(), "list", directory);
  std::sort(manifest.files.begin(), manifest.files.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  nlohmann::ordered_json json;
  json["step"] = manifest.step;
  WriteResolvedKeys(manifest.resolved, json);
  json["result_keys"] = manifest.result_keys;
  json["details"] = nlohmann::json::parse(manifest.details_json, nullptr, false);
  if (!json["details"].is_object()) {
    return absl::InternalError("the details of a checkpoint manifest are not a JSON object");
  }
  json["files"] = nlohmann::json::array();
  for (const auto& file : manifest.files) {
    json["files"].push_back(
        {{"name", file.name}, {"size", file.size}, {"xxh3", absl::StrFormat("%016x", file.hash)}});
  }
  return WriteFileAtomically(JoinPath(directory, kManifestName), json.dump(1) + "\n");
}

std::string IdentityOf(const CheckpointManifest& manifest) {
  std::string text = manifest.result_keys;
  for (const CheckpointManifest::FileEntry& file : manifest.files) {
    absl::StrAppend(&text, file.name, " ", file.size, " ", file.hash, "\n");
  }
  return absl::StrFormat("step %d, checksum %016x", manifest.step,
                         XXH3_64bits(text.data(), text.size()));
}

absl::StatusOr<CheckpointManifest> ReadManifest(const std::string& directory) {
  const std::string path = JoinPath(directory, kManifestName);
  const absl::StatusOr<std::string> text = ReadWholeFile(path, limits::kMostFileBytes);
  if (!text.ok()) return Unreadable(text.status());
  return ParseManifest(*text, path);
}

absl::StatusOr<CheckpointManifest> VerifyCheckpoint(const std::string& directory,
                                                    const std::atomic<bool>* cancelled) {
  HARMONY_ASSIGN_OR_RETURN(CheckpointManifest manifest, ReadManifest(directory));
  if (fs::path(directory).filename() != CheckpointName(manifest.step) &&
      absl::StartsWith(fs::path(directory).filename().string(), kPrefix)) {
    return Damaged(directory, absl::StrCat("its manifest is of step ", manifest.step));
  }
  for (const CheckpointManifest::FileEntry& expected : manifest.files) {
    const std::string path = JoinPath(directory, expected.name);
    const auto found = Describe(directory, expected.name, cancelled);
    if (absl::IsAborted(found.status())) return found.status();
    if (!found.ok()) return Unreadable(found.status());
    if (found->size != expected.size) {
      return Damaged(path, absl::StrCat("has ", found->size, " bytes, not ", expected.size));
    }
    if (found->hash != expected.hash) return Damaged(path, "its checksum is wrong");
  }
  return manifest;
}

absl::StatusOr<std::vector<int64_t>> ReadCheckpoints(const std::string& output_dir) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator entry(output_dir, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    absl::string_view number = name;
    int64_t step = 0;
    if (absl::ConsumePrefix(&number, kPrefix) && absl::SimpleAtoi(number, &step) && step >= 0 &&
        CheckpointName(step) == name) {
      steps.push_back(step);
    }
  }
  if (error) return ErrnoStatus(error.value(), "list", output_dir);
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::vector<int64_t> ListCheckpoints(const std::string& output_dir) {
  return ReadCheckpoints(output_dir).value_or(std::vector<int64_t>());
}

absl::Status PruneCheckpoints(const std::string& output_dir, int64_t limit, int64_t keep_step,
                              const std::string& keep_path) {
  if (limit <= 0) return absl::OkStatus();
  const std::vector<int64_t> steps = ListCheckpoints(output_dir);
  for (size_t i = static_cast<size_t>(limit); i < steps.size(); ++i) {
    const std::string path = JoinPath(output_dir, CheckpointName(steps[i]));
    std::error_code error;
    if (steps[i] == keep_step || fs::equivalent(path, keep_path, error)) continue;
    // The manifest goes first: what is left of a removal that was cut short is no checkpoint.
    fs::remove(JoinPath(path, kManifestName), error);
    fs::remove_all(path, error);
    if (error) return ErrnoStatus(error.value(), "remove", path);
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointManifest> VerifyNamedCheckpoint(const std::string& path) {
  if (const std::vector<int64_t> steps = ListCheckpoints(path); !steps.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": is an output_dir; its newest checkpoint is ", CheckpointName(steps.front())));
  }
  std::error_code error;
  if (!fs::exists(path, error)) {
    const std::vector<int64_t> there = ListCheckpoints(fs::path(path).parent_path());
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": there is no such folder",
        there.empty()
            ? ""
            : absl::StrCat("; the newest checkpoint there is ", CheckpointName(there.front()),
                           ", and save_total_limit says how many are kept")));
  }
  const absl::Status found = File::OpenForReading(JoinPath(path, kManifestName)).status();
  if (!absl::IsNotFound(found)) return VerifyCheckpoint(path);
  return absl::InvalidArgumentError(absl::StrCat(
      path,
      ": is no checkpoint, which is a folder checkpoint-N of an output_dir; a directory with "
      "a model's weights is model_name_or_path, with init: pretrained"));
}

}  // namespace harmony::io
