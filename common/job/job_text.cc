// The canonical texts of a JobSpec.

#include <xxhash.h>

#include <map>
#include <nlohmann/json.hpp>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/document/strict_json.h"
#include "common/job/job_check.h"
#include "common/job/job_file.h"
#include "common/job/job_keys.h"

namespace harmony::job {
namespace {

constexpr char kResume[] = "resume_from_checkpoint", kBegunFrom[] = "begun_from";
constexpr char kModel[] = "model", kModelContent[] = "model_content";

std::map<std::string, std::string> Lines(absl::string_view text) {
  std::map<std::string, std::string> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(": ", 1));
    lines[parts.first] = parts.second;
  }
  return lines;
}

std::string TextOf(const nlohmann::json& json) {
  return json.is_string() ? json.get<std::string>() : json.dump();
}

// A stored value as the job file would have given it.
JobValue ToFlatValue(const nlohmann::json& json, absl::string_view where) {
  JobValue value;
  value.origin = std::string(where);
  if (json.is_array()) {
    value.kind = JobValue::Kind::kList;
    for (const nlohmann::json& item : json) value.items.push_back(TextOf(item));
  } else if (json.is_object()) {
    value.kind = JobValue::Kind::kMap;
    for (const auto& [name, item] : json.items()) {
      value.items.push_back(absl::StrCat(name, "=", TextOf(item)));
    }
  } else {
    value.text = TextOf(json);
  }
  return value;
}

JobValue ToValue(const nlohmann::json& json, absl::string_view where) {
  const auto is_map = [](const nlohmann::json& item) { return item.is_object(); };
  if (!json.is_array() || json.empty() || !absl::c_all_of(json, is_map)) {
    return ToFlatValue(json, where);
  }
  JobValue value;
  value.origin = std::string(where);
  value.kind = JobValue::Kind::kMaps;
  for (const nlohmann::json& item : json) {
    JobMap& map = value.maps.emplace_back();
    map.origin = value.origin;
    for (const auto& [name, field] : item.items()) {
      map.fields.emplace_back(name, ToFlatValue(field, where));
    }
  }
  return value;
}

}  // namespace

std::string ResultKeysText(const JobSpec& job) {
  std::string text;
  for (const JobKey& key : JobKeys()) {  // sorted by name
    if (!key.determines_result) continue;
    std::string value = key.print(job);
    for (char& c : value) {
      if (c == '\n') c = ' ';  // one line a key, whatever a path holds
    }
    absl::StrAppend(&text, key.name, ": ", value, "\n");
  }
  if (!job.begun_from.empty()) absl::StrAppend(&text, kResume, ": ", job.begun_from, "\n");
  if (!job.model_content.empty()) absl::StrAppend(&text, kModel, ": ", job.model_content, "\n");
  return text;
}

std::string BegunFrom(absl::string_view result_keys_text) {
  return Lines(result_keys_text)[kResume];
}

std::string ResultDigest(absl::string_view result_keys_text) {
  const XXH128_hash_t hash = XXH3_128bits(result_keys_text.data(), result_keys_text.size());
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

std::vector<std::string> DifferingKeys(absl::string_view before, absl::string_view after) {
  auto old_lines = Lines(before), new_lines = Lines(after);
  // What an earlier version did not know yet was as it is by default.
  for (const JobKey& key : JobKeys()) {
    if (!key.determines_result || key.required) continue;
    const std::string name(key.name), usual = key.print(JobSpec());
    if (old_lines.contains(name) != new_lines.contains(name)) {
      old_lines.try_emplace(name, usual);
      new_lines.try_emplace(name, usual);
    }
  }
  if (old_lines.contains(kModel) != new_lines.contains(kModel)) {
    old_lines.erase(kModel);
    new_lines.erase(kModel);
  }
  std::map<std::string, std::pair<std::string, std::string>> all;
  for (const auto& [key, value] : old_lines) all[key].first = value;
  for (const auto& [key, value] : new_lines) all[key].second = value;
  std::vector<std::string> differing;
  for (const auto& [key, values] : all) {
    if (values.first == values.second) continue;
    differing.push_back(absl::StrCat(key, " (", values.first.empty() ? "absent" : values.first,
                                     " -> ", values.second.empty() ? "absent" : values.second,
                                     ")"));
  }
  return differing;
}

std::string JobSpecToJson(const JobSpec& job) {
  nlohmann::json json = nlohmann::json::object();
  for (const JobKey& key : JobKeys()) {
    const std::string text = key.print(job);
    if (key.type == JobKey::Type::kPaths) {
      json[std::string(key.name)] = job.data_inputs;
      continue;
    }
    const bool literal = key.type == JobKey::Type::kLiteral && nlohmann::json::accept(text);
    json[std::string(key.name)] = literal ? nlohmann::json::parse(text) : nlohmann::json(text);
  }
  if (!job.begun_from.empty()) json[kBegunFrom] = job.begun_from;
  if (!job.model_content.empty()) json[kModelContent] = job.model_content;
  // A path that is no UTF-8 cannot be kept exactly; it must not throw either.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<JobSpec> JobSpecFromJson(absl::string_view json, absl::string_view where) {
  HARMONY_ASSIGN_OR_RETURN(const nlohmann::json parsed, document::ParseStrictJson(json, where));
  if (!parsed.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": must hold a JSON object"));
  }
  JobSpec job;
  for (const JobKey& key : JobKeys()) {
    const auto it = parsed.find(std::string(key.name));
    if (it == parsed.end() && !key.required) continue;  // stored by an earlier version
    if (it == parsed.end()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": '", key.name, "' is missing"));
    }
    HARMONY_RETURN_IF_ERROR(key.read(key, ToValue(*it, where), job));
  }
  for (const auto& [name, value] : parsed.items()) {
    if (name == kBegunFrom && value.is_string()) {
      job.begun_from = value.get<std::string>();
    } else if (name == kModelContent && value.is_string()) {
      job.model_content = value.get<std::string>();
    } else if (FindJobKey(name) == nullptr) {
      return UnknownJobKey(name, where);
    }
  }
  HARMONY_RETURN_IF_ERROR_CTX(CheckJob(job), where);
  return job;
}

}  // namespace harmony::job
