#include "worker/device/cpu_identity.h"

#include <ATen/Version.h>
#include <torch/headeronly/version.h>

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/version.h"

namespace harmony::worker {

std::string TorchVersion() {
  return absl::StrCat(TORCH_VERSION_MAJOR, ".", TORCH_VERSION_MINOR, ".", TORCH_VERSION_PATCH);
}

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string CpuComputesOn() {
  return absl::StrCat(ProcessorName(), " (", at::get_cpu_capability(), "), LibTorch ",
                      TorchVersion(), ", harmony ", Version());
}

}  // namespace harmony::worker
