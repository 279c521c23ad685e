#include "client/launcher/host_memory.h"

#include <algorithm>
#include "absl/strings/str_cat.h"

namespace harmony::client {
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

}  // namespace harmony::client
