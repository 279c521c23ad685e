#include "worker/device/cuda_plugin.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/build_identity.h"
#include "common/base/status.h"
#include "common/cuda/plugin_path.h"

namespace harmony::worker {
namespace {

absl::StatusOr<const CudaPlugin*> LoadPlugin() {
  const std::string path = cuda::PluginPath();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("this build cannot compute on GPUs: ", dlerror(), "; use sim devices"));
  }
  const auto entry = reinterpret_cast<CudaPluginEntry>(dlsym(library, kCudaPluginEntry));
  const CudaPlugin* const plugin = entry == nullptr ? nullptr : entry();
  if (plugin == nullptr || absl::string_view(plugin->build) != BuildIdentity()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " belongs to another build than this program, ", BuildIdentity(),
                     ": build all of it"));
  }
  return plugin;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceBackend>> OpenCudaBackend(const plan::DeviceSpec& device,
                                                               int fd) {
  HARMONY_ASSIGN_OR_RETURN(const CudaPlugin* plugin, LoadPlugin());
  return plugin->open(device, fd);
}

}  // namespace harmony::worker
