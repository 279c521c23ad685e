#include "client/launcher/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace harmony {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// The number in a one-line file; nothing for "max", for a value that v1 uses for "no limit", or
// when the file cannot be read.
std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  int64_t value = 0;
  if (!(file >> word) || !absl::SimpleAtoi(word, &value)) return std::nullopt;
  if (value < 0 || value > (int64_t{1} << 60)) return std::nullopt;
  return value;
}

// The number behind `key` in a file of "key value" lines ("key:" too); 0 when missing.
int64_t ReadField(const std::string& path, absl::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t value = 0;
    if (words >> name >> value && absl::StripSuffix(name, ":") == key) return value;
  }
  return 0;
}

// What one control group leaves; kUnlimited when it sets no limit.
int64_t LeftInGroup(const std::string& dir, bool v2) {
  std::optional<int64_t> limit =
      ReadNumber(absl::StrCat(dir, v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  if (!limit) return kUnlimited;
  int64_t used =
      ReadNumber(absl::StrCat(dir, v2 ? "/memory.current" : "/memory.usage_in_bytes")).value_or(0);
  int64_t droppable =
      ReadField(absl::StrCat(dir, "/memory.stat"), v2 ? "inactive_file" : "total_inactive_file");
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, used - droppable));
}

// The least that any level from `path` up to the root of the hierarchy leaves.
int64_t LeftUpTheTree(const std::string& root, std::string path, bool v2) {
  int64_t left = kUnlimited;
  while (true) {
    left = std::min(left, LeftInGroup(absl::StrCat(root, path), v2));
    size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return left;
    path.resize(slash);
  }
}

}  // namespace

Bytes AvailableHostMemory(const std::string& proc, const std::string& cgroup) {
  int64_t available = ReadField(absl::StrCat(proc, "/meminfo"), "MemAvailable") * 1024;
  std::ifstream groups(absl::StrCat(proc, "/self/cgroup"));
  // Lines are "hierarchy:controllers:/path"; v2 has hierarchy 0 and no controllers.
  for (std::string line; std::getline(groups, line);) {
    size_t first = line.find(':');
    size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers.empty()) {
      available = std::min(available, LeftUpTheTree(cgroup, path, /*v2=*/true));
    } else if (controllers == "memory") {
      available = std::min(available, LeftUpTheTree(cgroup + "/memory", path, /*v2=*/false));
    }
  }
  return Bytes(available);
}

Bytes DefaultHostSegment(Bytes available, Bytes sim_devices) {
  int64_t mib = (available - sim_devices).count() / 10 * 8 >> 20;
  return std::max(MiB(mib), MiB(64));
}

std::string DefaultDevices(Bytes available) {
  int64_t steps = available.count() / 4 / MiB(256).count();
  int64_t mib = std::clamp<int64_t>(steps, 1, 32) * 256;
  if (mib % 1024 == 0) return absl::StrCat("sim:mem=", mib / 1024, "GiB");
  return absl::StrCat("sim:mem=", mib, "MiB");
}

}  // namespace harmony
