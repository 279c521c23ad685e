#include "common/job/job_file.h"

#include <yaml-cpp/yaml.h>

#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/document/yaml_document.h"
#include "common/job/job_check.h"
#include "common/job/job_keys.h"
#include "common/job/key_aliases.h"
#include "common/model/model_config.h"

namespace harmony::job {
namespace {

constexpr double kMostEpochs = 1e9;

using Values = std::map<std::string, JobValue>;  // by key, nested ones with a dot

std::string OriginOf(const YAML::Node& node, absl::string_view where, bool has_lines) {
  return has_lines ? absl::StrCat(where, ":", node.Mark().line + 1) : std::string(where);
}

// Reads one value that holds no further maps than itself; `origin` says where it stands.
JobValue ToFlatValue(const YAML::Node& node, std::string origin) {
  JobValue value;
  value.origin = std::move(origin);
  if (node.IsScalar()) {
    value.text = node.Scalar();
    value.quoted = node.Tag() == "!";
    return value;
  }
  value.kind = JobValue::Kind::kOther;
  if (node.IsMap()) {
    for (const auto& item : node) {
      if (!item.first.IsScalar() || !item.second.IsScalar()) return value;
      value.items.push_back(absl::StrCat(item.first.Scalar(), "=", item.second.Scalar()));
    }
    value.kind = JobValue::Kind::kMap;
    return value;
  }
  if (!node.IsSequence()) return value;
  for (const auto& item : node) {
    if (!item.IsScalar()) return value;
    value.items.push_back(item.Scalar());
  }
  value.kind = JobValue::Kind::kList;
  return value;
}

// Reads one value, a list of maps among them.
JobValue ToValue(const YAML::Node& node, absl::string_view where, bool has_lines,
                 std::string origin) {
  JobValue value = ToFlatValue(node, std::move(origin));
  if (value.kind != JobValue::Kind::kOther || !node.IsSequence()) return value;
  for (const auto& item : node) {
    if (!item.IsMap()) return value;
    JobMap& map = value.maps.emplace_back();
    map.origin = OriginOf(item, where, has_lines);
    for (const auto& field : item) {
      if (!field.first.IsScalar()) return value;
      map.fields.emplace_back(field.first.Scalar(),
                              ToFlatValue(field.second, OriginOf(field.first, where, has_lines)));
    }
  }
  value.kind = JobValue::Kind::kMaps;
  return value;
}

bool IsKnown(absl::string_view key) {
  return FindJobKey(key) != nullptr || key == kSamplesPerTask || key == kAccumulation ||
         key == kEpochs || key == kAppended;
}

// Reads a map into `values`; `prefix` is "" or "data.".
absl::Status ReadMap(const YAML::Node& map, absl::string_view prefix, absl::string_view where,
                     bool has_lines, Values& values) {
  for (const auto& item : map) {
    const std::string origin = OriginOf(item.first, where, has_lines);
    if (!item.first.IsScalar()) {
      return absl::InvalidArgumentError(absl::StrCat(origin, ": a key must be a plain text"));
    }
    const std::string key(OwnName(absl::StrCat(prefix, item.first.Scalar())));
    if (key == "data" && prefix.empty()) {
      if (!item.second.IsMap()) {
        return absl::InvalidArgumentError(
            absl::StrCat(origin, ": data must be a map like {path: FILE, format: text-bytes} or ",
                         "{inputs: {NAME: FILE.npy, ...}}"));
      }
      HARMONY_RETURN_IF_ERROR(ReadMap(item.second, "data.", where, has_lines, values));
      continue;
    }
    if (!IsKnown(key)) return UnknownJobKey(key, origin);
    if (item.second.IsNull()) {
      return absl::InvalidArgumentError(absl::StrCat(origin, ": ", key, " has no value"));
    }
    if (!values.emplace(key, ToValue(item.second, where, has_lines, origin)).second) {
      return absl::InvalidArgumentError(absl::StrCat(origin, ": ", key, " is given twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadFile(absl::string_view text, const std::string& path, Values& values) {
  HARMONY_ASSIGN_OR_RETURN(const YAML::Node root, document::ParseYaml(text, path));
  if (!root.IsMap()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": must hold keys and values"));
  }
  try {
    return ReadMap(root, "", path, /*has_lines=*/true, values);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not valid YAML: ", error.msg));
  }
}

absl::Status ReadOverride(absl::string_view setting, Values& values) {
  const std::string origin = absl::StrCat("--set ", setting.substr(0, 200));
  const std::vector<std::string> parts = absl::StrSplit(setting, absl::MaxSplits('=', 1));
  if (parts.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": must be of the form key=value"));
  }
  const std::string key(OwnName(parts[0]));
  if (key == "data") {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": set data.path, data.format, data.inputs or another key of data"));
  }
  if (!IsKnown(key)) return UnknownJobKey(key, origin);
  if (parts[1].empty()) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": ", key, " has no value"));
  }
  JobValue value;
  value.text = parts[1];
  value.origin = origin;
  if (absl::StartsWith(parts[1], "[") || absl::StartsWith(parts[1], "{")) {
    HARMONY_ASSIGN_OR_RETURN(const YAML::Node node, document::ParseYaml(parts[1], origin));
    value = ToValue(node, origin, /*has_lines=*/false, origin);
  }
  values[key] = std::move(value);
  return absl::OkStatus();
}

// What other trainers say of the batch: sequences in a task, and tasks in a step. As on one device:
// here the number of devices never changes the batch.
absl::Status TakeBatchKeys(Values& values) {
  const auto samples = values.find(std::string(kSamplesPerTask));
  const auto tasks = values.find(std::string(kAccumulation));
  if (samples == values.end() && tasks == values.end()) return absl::OkStatus();
  const std::string& origin = (samples != values.end() ? samples : tasks)->second.origin;
  if (samples == values.end() || tasks == values.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": ", kSamplesPerTask, " and ", kAccumulation,
                     " need each other: their product is global_batch_size, whatever the number "
                     "of devices; or give global_batch_size and micro_batch_size"));
  }
  for (const char* own : {"micro_batch_size", "global_batch_size"}) {
    if (!values.contains(own)) continue;
    return absl::InvalidArgumentError(absl::StrCat(origin, ": ", kSamplesPerTask, " and ",
                                                   kAccumulation, " say what ", own,
                                                   " says: give one of them"));
  }
  int64_t per_task = 0, per_step = 0;
  for (const auto& [given, number] : {std::pair(samples, &per_task), std::pair(tasks, &per_step)}) {
    if (absl::SimpleAtoi(given->second.text, number) && *number >= 1 && *number <= (1 << 20)) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(given->second.origin, ": ", given->first,
                                                   " is '", given->second.text.substr(0, 100),
                                                   "'; it must be a whole number from 1"));
  }
  JobValue batch = tasks->second;
  batch.text = absl::StrCat(per_task * per_step);
  values["micro_batch_size"] = samples->second;
  values["global_batch_size"] = std::move(batch);
  return absl::OkStatus();
}

// JobFile::epochs. Those of the overrides go before those of the file, whichever of the two keys
// they are.
absl::StatusOr<double> TakeEpochs(Values& values, const Values& set) {
  double taken = 0;
  for (const Values* given : {static_cast<const Values*>(&values), &set}) {
    const auto epochs = given->find(std::string(kEpochs));
    if (epochs == given->end()) continue;
    const JobValue& value = epochs->second;
    double passes = 0;
    const bool number = value.kind == JobValue::Kind::kScalar && !value.quoted &&
                        absl::SimpleAtod(value.text, &passes);
    if (!number || !(passes > 0 && passes <= kMostEpochs)) {
      return absl::InvalidArgumentError(absl::StrCat(value.origin, ": epochs is '",
                                                     value.text.substr(0, 100),
                                                     "'; it must be a number above 0, of passes "
                                                     "over the data"));
    }
    if (given->contains("max_steps")) {
      return absl::InvalidArgumentError(absl::StrCat(
          value.origin, ": epochs and max_steps both say how long to train: give one"));
    }
    taken = passes;
  }
  if (set.contains(std::string(kEpochs))) values.erase("max_steps");
  return set.contains("max_steps") ? 0 : taken;
}

absl::StatusOr<bool> ReadAppended(const Values& values, const Values& set) {
  const Values& given = set.contains(std::string(kAppended)) ? set : values;
  const auto found = given.find(std::string(kAppended));
  if (found == given.end() || found->second.text == "false") return false;
  if (found->second.text == "true") return true;
  return absl::InvalidArgumentError(
      absl::StrCat(found->second.origin, ": ", kAppended, " must be true or false"));
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

// A relative path as seen from `folder` (which ends with a slash, or is empty). Whether there was
// one.
bool Resolve(const JobKey& key, const std::string& folder, JobValue& value) {
  if (key.type == JobKey::Type::kPaths) {
    bool any = false;
    for (std::string& item : value.items) {
      const size_t path = item.find('=') + 1;
      if (path == 0 || path >= item.size() || item[path] == '/') continue;
      item.insert(path, folder);
      any = true;
    }
    return any;
  }
  if (value.kind != JobValue::Kind::kScalar || value.text.empty()) return false;
  if (key.type == JobKey::Type::kPath) {  // the same path: the same run
    while (value.text.size() > 1 && value.text.back() == '/') value.text.pop_back();
  }
  if (value.text[0] == '/') return false;
  const bool is_preset =
      key.type == JobKey::Type::kModel && model::PresetConfigJson(value.text).ok();
  const bool is_path = key.type == JobKey::Type::kPath || key.type == JobKey::Type::kModel;
  if (!is_path || IsWord(key, value) || is_preset) return false;
  while (absl::StartsWith(value.text, "./")) value.text.erase(0, 2);  // the same path: the same run
  value.text = folder + value.text;
  return true;
}

absl::Status IsMissing(absl::string_view path, absl::string_view key, absl::string_view how = "") {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": the key '", key, "' is missing; it must be given", how));
}

absl::Status IsRelative(absl::string_view key, const JobValue& value) {
  return absl::InvalidArgumentError(absl::StrCat(
      value.origin, ": ", key,
      ": is a relative path, and the job comes from another machine, whose folders are not those "
      "of "
      "the coordinator: give the whole path on the coordinator's machine, from '/' on"));
}

// Tokens by their file and its format, or arrays by the inputs that they are for.
template <typename Given>
absl::Status CheckData(absl::string_view path, const Given& given) {
  const bool masks = given("data.mask_probability") || given("data.mask_token");
  const bool tokens =
      given("data.path") || given("data.format") || given(kAppended.data()) || masks;
  if (given("data.inputs")) {
    if (!tokens) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": data.inputs and data.path exclude each other, with all that belongs to it (",
        "data.format, data.mask_probability, data.mask_token, data.appended): arrays, or a file of "
        "tokens"));
  }
  if (!tokens) {
    return IsMissing(path, "data",
                     " as {path: FILE, format: text-bytes | tokens-u16 | tokens-u32}, or for an "
                     "exported model as {inputs: {NAME: FILE.npy, ...}}");
  }
  for (const char* key : {"data.path", "data.format"}) {
    if (!given(key)) return IsMissing(path, key);
  }
  for (const char* key : {"data.mask_probability", "data.mask_token"}) {
    if (masks && !given(key)) return IsMissing(path, key, " where tokens are masked");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<JobFile> ReadJobFile(absl::string_view text, const std::string& path,
                                    const JobOverrides& overrides) {
  JobFile file;
  Values values;
  HARMONY_RETURN_IF_ERROR(ReadFile(text, path, values));
  Values set;
  for (const std::string& setting : overrides.settings) {
    HARMONY_RETURN_IF_ERROR(ReadOverride(setting, set));
  }
  HARMONY_RETURN_IF_ERROR(TakeBatchKeys(values));
  HARMONY_RETURN_IF_ERROR(TakeBatchKeys(set));
  HARMONY_ASSIGN_OR_RETURN(file.epochs, TakeEpochs(values, set));
  HARMONY_ASSIGN_OR_RETURN(file.appended, ReadAppended(values, set));
  for (const Values* map : {&values, &set}) {
    for (const auto& [key, value] : *map) file.given.insert(key);
  }
  const std::string file_folder = FolderOf(path);
  const std::string set_folder =
      overrides.folder.empty() ? file_folder : absl::StrCat(overrides.folder, "/");
  const auto given = [&](const char* name) { return file.given.contains(name); };
  HARMONY_RETURN_IF_ERROR(CheckData(path, given));
  for (const JobKey& key : JobKeys()) {
    const std::string name(key.name);
    const bool is_set = set.contains(name);
    if (!is_set && !values.contains(name)) {
      if (!key.required) continue;
      return IsMissing(path, name);
    }
    JobValue& value = is_set ? set[name] : values[name];
    if (key.type == JobKey::Type::kPath && absl::StartsWith(value.text, "~/")) {
      return absl::InvalidArgumentError(absl::StrCat(
          value.origin, ": ", name, ": ~ stands for no folder here; write the whole path"));
    }
    const bool relative = Resolve(key, is_set ? set_folder : file_folder, value);
    if (relative && overrides.absolute_paths_only) return IsRelative(name, value);
    HARMONY_RETURN_IF_ERROR(key.read(key, value, file.job));
  }
  HARMONY_RETURN_IF_ERROR_CTX(CheckJob(file.job), path);
  return file;
}

absl::StatusOr<int64_t> StepsOfEpochs(double epochs, int64_t samples, int64_t batch_size) {
  // What only rounding adds to a whole number of steps is no further step.
  const double steps = std::ceil(epochs * static_cast<double>(samples) /
                                 static_cast<double>(batch_size) * (1 - 1e-12));
  if (steps > static_cast<double>(limits::kMostSteps)) {
    return absl::InvalidArgumentError(
        absl::StrCat("epochs: ", epochs, " is more than ", limits::kMostSteps, " steps: lower it"));
  }
  return static_cast<int64_t>(steps);
}

}  // namespace harmony::job
