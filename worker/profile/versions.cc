#include "worker/profile/versions.h"

#include <ATen/Version.h>
#include <sched.h>

#include <algorithm>

#include "common/base/version.h"
#include "worker/device/cpu_identity.h"

namespace harmony::worker {
profile::ProfileVersions MeasuringVersions() {
  profile::ProfileVersions versions;
  versions.harmony = Version();
  versions.torch = TorchVersion();
  versions.cpu_capability = at::get_cpu_capability();
  versions.cpu = ProcessorName();
  cpu_set_t set;
  const bool known = sched_getaffinity(0, sizeof(set), &set) == 0;
  versions.cores = known ? std::max(1, CPU_COUNT(&set)) : 1;
  return versions;
}

}  // namespace harmony::worker
