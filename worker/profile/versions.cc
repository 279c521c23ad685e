#include "worker/profile/versions.h"

#include <ATen/Version.h>
#include <sched.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/version.h"

namespace harmony::worker {
namespace {

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace

profile::ProfileVersions MeasuringVersions() {
  profile::ProfileVersions versions;
  versions.harmony = Version();
  versions.torch =
      absl::StrCat(TORCH_VERSION_MAJOR, ".", TORCH_VERSION_MINOR, ".", TORCH_VERSION_PATCH);
  versions.cpu_capability = at::get_cpu_capability();
  versions.cpu = ProcessorName();
  cpu_set_t set;
  const bool known = sched_getaffinity(0, sizeof(set), &set) == 0;
  versions.cores = known ? std::max(1, CPU_COUNT(&set)) : 1;
  return versions;
}

}  // namespace harmony::worker
