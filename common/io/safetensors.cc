#include "common/io/safetensors.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/document/strict_json.h"

namespace harmony::io {
namespace {

using Json = nlohmann::json;

// A name from the file as messages show it.
std::string Quote(absl::string_view name) {
  return absl::StrCat("tensor '", name.substr(0, 200), "'");
}

absl::Status Bad(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": ", what, "; the file is damaged or no safetensors file"));
}

// A JSON value as a count from 0 to `limit`; -1 when it is none.
int64_t AsCount(const Json& value, int64_t limit) {
  if (!value.is_number_unsigned()) return -1;
  const uint64_t number = value.get<uint64_t>();
  return number > static_cast<uint64_t>(limit) ? -1 : static_cast<int64_t>(number);
}

absl::Status ParseShape(const Json& value, absl::string_view where, SafetensorsEntry& entry,
                        int64_t* elements) {
  constexpr int64_t kMost = int64_t{1} << 48;
  if (!value.is_array() || value.size() > 16) {
    return Bad(where, absl::StrCat(Quote(entry.name), ": 'shape' is no list of at most 16 sizes"));
  }
  *elements = 1;
  for (const Json& item : value) {
    const int64_t size = AsCount(item, kMost);
    if (size < 0) {
      return Bad(where, absl::StrCat(Quote(entry.name), ": 'shape' holds no valid size"));
    }
    if (size > 0 && *elements > kMost / size) {
      return Bad(where,
                 absl::StrCat(Quote(entry.name), ": 'shape' multiplies to too many elements"));
    }
    *elements *= size;
    entry.shape.push_back(size);
  }
  return absl::OkStatus();
}

// `data_begin` is where the data start in the file, `data_size` how many bytes there are.
absl::StatusOr<SafetensorsEntry> ParseEntry(const std::string& name, const Json& value,
                                            int64_t data_begin, int64_t data_size,
                                            absl::string_view where) {
  SafetensorsEntry entry;
  entry.name = name;
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!value.is_object() || !value.contains(key)) {
      return Bad(where, absl::StrCat(Quote(name), ": '", key, "' is missing"));
    }
  }
  const Json& dtype = value.at("dtype");
  if (!dtype.is_string()) return Bad(where, absl::StrCat(Quote(name), ": 'dtype' is no string"));
  auto parsed = ParseDType(dtype.get_ref<const std::string&>());
  if (!parsed.ok()) return WithContext(parsed.status(), absl::StrCat(where, ": ", Quote(name)));
  entry.dtype = *parsed;
  int64_t elements = 0;
  HARMONY_RETURN_IF_ERROR(ParseShape(value.at("shape"), where, entry, &elements));
  const Json& offsets = value.at("data_offsets");
  const bool is_pair = offsets.is_array() && offsets.size() == 2;
  const int64_t begin = is_pair ? AsCount(offsets[0], data_size) : -1;
  const int64_t end = is_pair ? AsCount(offsets[1], data_size) : -1;
  if (begin < 0 || end < begin) {
    return Bad(where, absl::StrCat(Quote(name), ": 'data_offsets' is no range within the ",
                                   data_size, " bytes of data (is the file truncated?)"));
  }
  const int64_t needed = elements * SizeOf(entry.dtype).count();
  if (end - begin != needed) {
    return Bad(where, absl::StrCat(Quote(name), ": has ", end - begin, " bytes, but its shape ",
                                   ShapeString(entry.shape), " and type ", ToString(entry.dtype),
                                   " need ", needed));
  }
  entry.begin = data_begin + begin;
  entry.end = data_begin + end;
  return entry;
}

absl::Status CheckMetadata(const Json& value, absl::string_view where) {
  if (!value.is_object()) return Bad(where, "'__metadata__' is no object");
  for (const Json& item : value) {
    if (!item.is_string()) return Bad(where, "'__metadata__' holds a value that is no string");
  }
  return absl::OkStatus();
}

// Sorts by offset and finds overlaps and holes.
absl::Status CheckLayout(std::vector<SafetensorsEntry>& entries, int64_t data_begin,
                         int64_t file_size, absl::string_view where) {
  std::sort(entries.begin(), entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  int64_t position = data_begin;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != position) {
      return Bad(where, absl::StrCat(Quote(entry.name), ": starts at byte ", entry.begin, ", ",
                                     entry.begin < position ? "inside" : "away from",
                                     " the end of the tensor before it at ", position));
    }
    position = entry.end;
  }
  if (position != file_size) {
    return Bad(where,
               absl::StrCat("the tensors end at byte ", position, " but the file has ", file_size));
  }
  return absl::OkStatus();
}

}  // namespace

std::string ShapeString(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<int64_t> SafetensorsHeaderSize(absl::string_view start, int64_t file_size,
                                              absl::string_view where) {
  if (start.size() < 8 || file_size < 8) {
    return Bad(where, absl::StrCat("has only ", file_size, " bytes"));
  }
  // Its first word, read as a size, is beyond any limit.
  if (absl::StartsWith(start, "version ")) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": is ", kGitLfsAdvice));
  }
  uint64_t size = 0;
  for (int i = 7; i >= 0; --i) size = (size << 8) | static_cast<unsigned char>(start[i]);
  if (size > static_cast<uint64_t>(kMaxSafetensorsHeader)) {
    return Bad(where, absl::StrCat("its header claims ", size, " bytes, over the limit of ",
                                   kMaxSafetensorsHeader));
  }
  if (size > static_cast<uint64_t>(file_size - 8)) {
    return Bad(where, absl::StrCat("its header claims ", size, " bytes, but the file has only ",
                                   file_size, " (is it truncated?)"));
  }
  return static_cast<int64_t>(size) + 8;
}

absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(absl::string_view start,
                                                                     int64_t file_size,
                                                                     absl::string_view where) {
  HARMONY_ASSIGN_OR_RETURN(const int64_t data_begin,
                           SafetensorsHeaderSize(start, file_size, where));
  if (static_cast<int64_t>(start.size()) < data_begin) {
    return Bad(where, "fewer bytes than its header has");
  }
  const absl::string_view text = start.substr(8, static_cast<size_t>(data_begin) - 8);
  if (text.empty() || text[0] != '{') return Bad(where, "its header is no JSON object");
  HARMONY_ASSIGN_OR_RETURN(const Json json, document::ParseStrictJson(text, where));
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      HARMONY_RETURN_IF_ERROR(CheckMetadata(value, where));
      continue;
    }
    HARMONY_ASSIGN_OR_RETURN(SafetensorsEntry entry,
                             ParseEntry(name, value, data_begin, file_size - data_begin, where));
    entries.push_back(std::move(entry));
  }
  HARMONY_RETURN_IF_ERROR(CheckLayout(entries, data_begin, file_size, where));
  return entries;
}

absl::StatusOr<std::vector<SafetensorsEntry>> ReadSafetensorsHeader(const File& file) {
  HARMONY_ASSIGN_OR_RETURN(const int64_t file_size, file.Size());
  std::string start(static_cast<size_t>(std::min<int64_t>(8, file_size)), '\0');
  HARMONY_RETURN_IF_ERROR(file.ReadAt(0, start.data(), static_cast<int64_t>(start.size())));
  HARMONY_ASSIGN_OR_RETURN(const int64_t header_size,
                           SafetensorsHeaderSize(start, file_size, file.path()));
  start.resize(static_cast<size_t>(header_size));
  HARMONY_RETURN_IF_ERROR(file.ReadAt(0, start.data(), header_size));
  return ParseSafetensorsHeader(start, file_size, file.path());
}

}  // namespace harmony::io
