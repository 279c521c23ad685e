#pragma once

// The table of a job's keys: how each is read, checked and printed. Private to this folder.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/job/job_spec.h"

namespace harmony::job {

struct JobMap;

// A value as the file (or a --set argument, or stored JSON) gave it.
struct JobValue {
  enum class Kind { kScalar, kList, kMap, kMaps, kOther };
  Kind kind = Kind::kScalar;
  std::string text;                // of a scalar
  std::vector<std::string> items;  // of a list of scalars; of a map of scalars, as "name=value"
  std::vector<JobMap> maps;        // of a list of maps (kMaps)
  bool quoted = false;             // then it is a string, never a number
  std::string origin;              // "job.yaml:12" or "--set"; in front of messages
};

// A map of a list, in the order of its text. A value of it holds no maps of such a list itself.
struct JobMap {
  std::string origin;
  std::vector<std::pair<std::string, JobValue>> fields;
};

struct JobKey {
  // What may be resolved as a path, and how the value is written in JSON.
  // kPaths: a map of names to paths.
  enum class Type { kLiteral, kText, kPath, kPaths, kModel };

  absl::string_view name;  // nested keys with a dot: "data.path"
  Type type = Type::kLiteral;
  bool required = false;
  bool determines_result = false;
  absl::Status (*read)(const JobKey& key, const JobValue& value, JobSpec& job);
  std::string (*print)(const JobSpec& job);
  // All values that it takes; null where they cannot be listed.
  std::vector<absl::string_view> (*values)() = nullptr;
};

// A value that names no path, though the key's others do: auto, none, true, false of
// resume_from_checkpoint.
bool IsWord(const JobKey& key, const JobValue& value);

absl::Span<const JobKey> JobKeys();
// Null when there is none of that name.
const JobKey* FindJobKey(absl::string_view name);

// Why there is no key of that name: not built yet, said otherwise here (key_aliases.h), or unknown
// (with the nearest known one).
absl::Status UnknownJobKey(absl::string_view name, absl::string_view origin);

}  // namespace harmony::job
