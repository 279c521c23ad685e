#pragma once

#include <string>

#include "common/base/units.h"

namespace harmony {

// Bytes that new allocations can use now: what the kernel calls available, or what the control
// groups of this process leave (v2 and v1, every level up to the root), whichever is less. Page
// cache that can be dropped counts as available. `proc` and `cgroup` are the mount points; tests
// pass folders of their own. 0 when nothing can be read.
Bytes AvailableHostMemory(const std::string& proc = "/proc",
                          const std::string& cgroup = "/sys/fs/cgroup");

// The default size of the host segment: 80% of what is available beside the memory of the
// sim devices, which comes from the same pool; at least 64 MiB, in whole MiB.
Bytes DefaultHostSegment(Bytes available, Bytes sim_devices);

// The default device where none is named and no GPU can be used: a quarter of what is available,
// between 256 MiB and 8 GiB, in whole 256 MiB. "sim:mem=4GiB".
std::string DefaultDevices(Bytes available);

}  // namespace harmony
