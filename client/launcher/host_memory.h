#pragma once

#include <string>

#include "common/base/units.h"

namespace harmony::client {

// The default size of the host segment: 80% of what is available beside the memory of the
// sim devices, which comes from the same pool; at least 64 MiB, in whole MiB.
Bytes DefaultHostSegment(Bytes available, Bytes sim_devices);

// The default device where none is named and no GPU can be used: a quarter of what is available,
// between 256 MiB and 8 GiB, in whole 256 MiB. "sim:mem=4GiB".
std::string DefaultDevices(Bytes available);

}  // namespace harmony::client
