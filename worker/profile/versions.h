#pragma once

#include "common/profile/profile.h"

namespace harmony::worker {

// Of this program, LibTorch as it was loaded, and the machine.
profile::ProfileVersions MeasuringVersions();

}  // namespace harmony::worker
