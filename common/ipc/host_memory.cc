#include "common/ipc/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace harmony::ipc {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

std::optional<std::string> ReadText(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The number in a file that holds just one; "max" and numbers beyond int64 are no limit.
std::optional<int64_t> ReadNumber(const std::string& path) {
  const std::optional<std::string> text = ReadText(path);
  if (!text.has_value()) return std::nullopt;
  const absl::string_view word = absl::StripAsciiWhitespace(*text);
  if (word == "max") return kUnlimited;
  uint64_t value = 0;
  if (!absl::SimpleAtoi(word, &value)) return std::nullopt;
  return static_cast<int64_t>(std::min<uint64_t>(value, kUnlimited));
}

// The number behind `key` in lines like "key 123" or "key: 123 kB".
std::optional<int64_t> ReadField(const std::string& path, absl::string_view key) {
  const std::optional<std::string> text = ReadText(path);
  if (!text.has_value()) return std::nullopt;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(": \t"), absl::SkipEmpty());
    int64_t value = 0;
    if (words.size() >= 2 && words[0] == key && absl::SimpleAtoi(words[1], &value)) return value;
  }
  return std::nullopt;
}

struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* inactive_file;
};

// What a control group and all its parents leave.
int64_t LeftInGroup(const std::string& mount, std::string path, const GroupFiles& files) {
  int64_t left = kUnlimited;
  while (true) {
    const std::string folder = absl::StrCat(mount, path == "/" ? "" : path, "/");
    const std::optional<int64_t> limit = ReadNumber(folder + files.limit);
    const std::optional<int64_t> usage = ReadNumber(folder + files.usage);
    if (limit.has_value() && usage.has_value() && *limit != kUnlimited) {
      const int64_t cache = ReadField(folder + "memory.stat", files.inactive_file).value_or(0);
      left = std::min(left, std::max<int64_t>(0, *limit - *usage + std::min(cache, *usage)));
    }
    const size_t slash = path.rfind('/');
    if (path == "/" || slash == std::string::npos) return left;
    path = slash == 0 ? "/" : path.substr(0, slash);
  }
}

}  // namespace

Bytes AvailableHostMemory(const std::string& root) {
  const std::optional<int64_t> available_kib = ReadField(root + "/proc/meminfo", "MemAvailable");
  int64_t left = available_kib.has_value() ? *available_kib * 1024 : kUnlimited;
  const std::string groups = ReadText(root + "/proc/self/cgroup").value_or("");
  for (absl::string_view line : absl::StrSplit(groups, '\n', absl::SkipEmpty())) {
    // hierarchy:controllers:path
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::string path(parts[2]);
    if (parts[1].empty()) {
      left = std::min(left, LeftInGroup(root + "/sys/fs/cgroup", path,
                                        {"memory.max", "memory.current", "inactive_file"}));
    }
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      left = std::min(left, LeftInGroup(root + "/sys/fs/cgroup/memory", path,
                                        {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                         "total_inactive_file"}));
    }
  }
  return Bytes(left);
}

Bytes SystemMemory(absl::string_view key) {
  return KiB(ReadField("/proc/meminfo", key).value_or(0));
}

std::optional<int64_t> OomKills(const std::string& root) {
  return ReadField(root + "/proc/vmstat", "oom_kill");
}

}  // namespace harmony::ipc
